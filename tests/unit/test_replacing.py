"""Temporary files: those of killed processes go, those that somebody writes stay."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from patience import PATIENCE_S
from powerinfer import _replacing
from powerinfer._replacing import abandoned_files, remove_abandoned, replacing
from powerinfer.errors import GGUFError


def _start_writing(path: Path) -> "subprocess.Popen[bytes]":
    """A process that has written half of a file, and waits."""
    code = f"""
import sys
from pathlib import Path
from powerinfer._replacing import replacing
from powerinfer.errors import GGUFError
with replacing(Path({str(path)!r}), error=GGUFError) as file:
    file.write(b"half")
    file.flush()
    print("begun", flush=True)
    sys.stdin.read()
    file.write(b", whole")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def _write(path: Path, content: bytes = b"new") -> None:
    with replacing(path, error=GGUFError) as file:
        file.write(content)


def test_what_a_killed_process_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    with _start_writing(tmp_path / "one") as process:
        process.kill()
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.read_bytes() == b"half"
    assert list(abandoned_files(tmp_path)) == [left]
    _write(tmp_path / "another")
    assert [path.name for path in tmp_path.iterdir()] == ["another"]


def test_what_a_living_process_writes_is_left_alone(tmp_path: Path) -> None:
    with _start_writing(tmp_path / "one") as process:
        (part,) = tmp_path.iterdir()
        # However old it looks, and from whichever host.
        os.utime(part, (0, 0))
        _write(tmp_path / "two")
        foreign = part.rename(tmp_path / ".one.00000000-00000000.powerinfer.part")
        _write(tmp_path / "two")
        assert foreign.rename(part).read_bytes() == b"half"
        process.communicate(b"", timeout=PATIENCE_S)
        assert process.returncode == 0
    assert (tmp_path / "one").read_bytes() == b"half, whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_files_of_users_and_of_others_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = _replacing._host_mark()
    kept = [
        "model.gguf.part",
        ".model.gguf.01234567.part",
        f"model.gguf.{host}-01234567.powerinfer.part",
        f".model.gguf.{host}-0123456.powerinfer.part",
        f".model.gguf.{host}-01234567.powerinfer.part.gguf",
        # Of another host, and not old enough.
        ".model.gguf.00000000-01234567.powerinfer.part",
    ]
    for name in kept:
        (tmp_path / name).touch()
    (tmp_path / f".link.{host}-01234567.powerinfer.part").symlink_to(tmp_path / kept[0])
    (tmp_path / f".folder.{host}-01234567.powerinfer.part").mkdir()
    os.mkfifo(tmp_path / f".pipe.{host}-01234567.powerinfer.part")
    before = sorted(tmp_path.iterdir())
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == before
    ours = tmp_path / f".model.gguf.{host}-01234567.powerinfer.part"
    ours.touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        remove_abandoned(tmp_path)
    assert ours.exists()
    remove_abandoned(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


def test_those_of_other_hosts_go_after_a_day(tmp_path: Path) -> None:
    path = tmp_path / ".model.gguf.00000000-01234567.powerinfer.part"
    path.touch()
    now = time.time()
    os.utime(path, (now, now - 23 * 3600))
    remove_abandoned(tmp_path)
    assert path.exists()
    os.utime(path, (now, now - 25 * 3600))
    remove_abandoned(tmp_path)
    assert not path.exists()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written as ever, and nothing is taken for abandoned."""

    def unsupported(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    left = tmp_path / f".x.{_replacing._host_mark()}-01234567.powerinfer.part"
    left.touch()
    _write(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert left.exists()


def test_a_platform_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are written as ever; only those that are a day old are taken for abandoned."""
    # Importing it fails, as on Windows.
    monkeypatch.setitem(sys.modules, "fcntl", None)
    host = _replacing._host_mark()
    old, new = (
        tmp_path / f".x.{host}-{number}.powerinfer.part" for number in ("01234567", "89abcdef")
    )
    old.touch()
    new.touch()
    day_before = time.time() - 25 * 3600
    os.utime(old, (day_before, day_before))
    for content in (b"first", b"second"):
        _write(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert sorted(tmp_path.iterdir()) == sorted([new, tmp_path / "file"])
    code = "import sys; sys.modules['fcntl'] = None; import powerinfer._replacing, powerinfer"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_hosts_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another "ubuntu" writes over the network stays, though its lock is not known here."""
    marks = []
    for number in ("1" * 32, "2" * 32, None):
        file = tmp_path / "machine-id"
        file.unlink(missing_ok=True)
        if number is not None:
            file.write_text(f"{number}\n")
        monkeypatch.setattr(_replacing, "_MACHINE_ID", file)
        _replacing._host_mark.cache_clear()
        marks.append(_replacing._host_mark())
    _replacing._host_mark.cache_clear()
    assert len(set(marks)) == 3


def test_a_new_file_never_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even of one that appears while it is written."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    path = tmp_path / "file"
    for has_links in (True, False):
        if not has_links:
            monkeypatch.setattr(os, "link", unsupported)
        with (
            pytest.raises(GGUFError, match="file: already exists; name a new file"),
            replacing(path, error=GGUFError, is_new=True) as file,
        ):
            file.write(b"new")
            path.write_bytes(b"of another")
        assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"of another"]
        path.unlink()


def test_one_that_was_taken_for_abandoned_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    calls: list[int] = []

    def late(file: BinaryIO, operation: int) -> None:
        if not calls:
            next(tmp_path.glob(".*.part")).unlink()
        calls.append(operation)
        real(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    _write(tmp_path / "file")
    assert len(calls) == 2
    assert (tmp_path / "file").read_bytes() == b"new"


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    for content in (b"first", b"second"):
        _write(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "elsewhere" / "file").read_bytes() == content
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(GGUFError, match="cannot write"):
        _write(tmp_path / "loop")


def test_names_as_long_as_a_file_system_takes(tmp_path: Path) -> None:
    for name in ("n" * 255, "ü" * 127):
        _write(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 2


def test_errors_in_between_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    for error in (KeyboardInterrupt, SystemExit, RuntimeError):
        with pytest.raises(error), replacing(tmp_path / "file", error=GGUFError) as file:
            file.write(b"new")
            raise error
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]
