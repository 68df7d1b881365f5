"""Small files: read with care, written atomically; the user's cache folder."""

import os
import sys
from pathlib import Path

import pytest

from powerinfer._files import cache_folder, read_small_file, write_atomically
from powerinfer.errors import CalibrationError, PlacementError


def _read(path: Path, largest_bytes: int = 100) -> bytes:
    return read_small_file(path, largest_bytes, noun="plan", error=PlacementError)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    assert write_atomically(path, b"one", error=PlacementError) == path
    assert write_atomically(path, b"two", error=PlacementError) == path
    assert _read(path) == b"two"
    assert _read(path, 3) == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_files_of_another_sort_or_size(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "file", bytes(101), error=PlacementError)
    with pytest.raises(PlacementError, match="too large for a plan"):
        _read(path)
    with pytest.raises(PlacementError, match="No such file"):
        _read(tmp_path / "none")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlacementError, match="not a regular file"):
        _read(tmp_path / "pipe")
    with pytest.raises(PlacementError, match="not a regular file"):
        _read(Path("/dev/zero"))


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = write_atomically(tmp_path / "file", b"", error=PlacementError)
    with pytest.raises(CalibrationError, match="cannot write"):
        write_atomically(path / "below", b"", error=CalibrationError)
    (tmp_path / "folder").mkdir()
    with pytest.raises(PlacementError, match="cannot write"):
        write_atomically(tmp_path / "folder", b"", error=PlacementError)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlacementError, match="cannot write: it is not a regular file"):
        write_atomically(tmp_path / "pipe", b"", error=PlacementError)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["file", "folder", "pipe"]


def test_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    usual = cache_folder("plans")
    assert usual.name == "plans"
    assert tmp_path in usual.parents
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    assert cache_folder("plans") == tmp_path / "powerinfer" / "plans"
    assert not usual.exists()
