"""Files named on the command line: empty paths, pipes, devices, noise."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from command_line import assert_error, invoke
from powerinfer.cli import files
from powerinfer.cli.files import check_folder, read_prompt_bytes, read_text
from tiny_models import TINY_MODELS, write_model


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_text_is_a_regular_file(tmp_path: Path, pipe: Path) -> None:
    """None of them may be waited for or read without end."""
    link = tmp_path / "zeros"
    link.symlink_to("/dev/zero")
    for path in (pipe, link, Path("/dev/zero"), tmp_path):
        with pytest.raises(click.FileError) as error:
            read_text(path)
        assert str(path) in error.value.format_message()


def test_a_prompt_may_come_through_a_pipe(pipe: Path) -> None:
    """As `-f <(command)` does; who reads waits for who writes."""
    with ThreadPoolExecutor(1) as other:
        done = other.submit(pipe.write_bytes, b"hello\n")
        assert read_prompt_bytes(pipe) == b"hello"
        assert done.result() == 6


def test_a_prompt_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LARGEST_PROMPT", 1 << 20)
    with pytest.raises(click.ClickException, match="/dev/zero: it has more than 1 MiB of text"):
        read_prompt_bytes(Path("/dev/zero"))


def test_noise_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"good \xff\xfe")
    with pytest.raises(click.ClickException, match="byte 5 is not UTF-8"):
        read_text(path)
    # A prompt may hold any bytes.
    assert read_prompt_bytes(path) == b"good \xff\xfe"
    path.write_text("größer\n")
    assert read_text(path) == "größer\n".encode()
    assert read_prompt_bytes(path) == "größer".encode()


def test_folders_are_checked_without_making_them(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "newer")
    assert not any(tmp_path.iterdir())
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/none")):
        with pytest.raises(click.ClickException, match="cannot write there"):
            check_folder(path)


def test_empty_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("run", "perplexity", "bench", "calibrate"):
        for option in ("-m", "-f"):
            assert_error(invoke(command, option, ""), "the path is empty")
    for option in ("-o", "--plot"):
        assert_error(invoke("calibrate", option, ""), "the path is empty")
    assert_error(invoke("pack", "model.gguf", "-o", ""), "the path is empty")
    assert not any(tmp_path.iterdir())


def test_commands_that_measure_read_stdin(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    common = ("perplexity", "-m", model, "-f", "-", "-c", "16")
    assert invoke(*common, stdin="the quick brown fox jumps over " * 4).exit_code == 0
    assert_error(invoke(*common, stdin=b"the quick \xff"), "stdin: byte 10 is not UTF-8")
