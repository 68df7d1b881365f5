"""Files named on the command line: empty paths, pipes, devices, noise."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from command_line import assert_error, invoke
from patience import PATIENCE_S
from powerinfer.cli import files
from powerinfer.cli.files import check_folder, read_prompt_bytes, read_text, text_name
from tiny_models import TINY_MODELS, write_model


def test_devices_and_folders_are_no_texts(tmp_path: Path) -> None:
    """None of them may be read without end."""
    link = tmp_path / "zeros"
    link.symlink_to("/dev/zero")
    for read in (read_text, read_prompt_bytes):
        for path in (link, Path("/dev/zero"), tmp_path, tmp_path / "none"):
            with pytest.raises(click.ClickException) as error:
                read(path)
            assert str(path) in error.value.format_message()
        assert read(Path("/dev/null")) == b""


def test_pipes_are_texts(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    # Longer than what a pipe holds.
    text = b"the quick brown fox\n" * 10_000
    for read, expected in ((read_text, text), (read_prompt_bytes, text[:-1])):
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(path.write_bytes, text)
            assert read(path) == expected
            assert written.result(PATIENCE_S) == len(text)


def test_what_a_text_is_called(tmp_path: Path) -> None:
    (tmp_path / "text.txt").touch()
    assert text_name(tmp_path / "text.txt") == "text.txt"
    os.mkfifo(tmp_path / "ff")
    assert text_name(tmp_path / "ff") == "ff"
    end, other_end = os.pipe()
    try:
        for path in ("-", f"/dev/fd/{end}"):
            assert text_name(Path(path)) == "stdin"
    finally:
        os.close(end)
        os.close(other_end)


def test_a_prompt_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_LARGEST_PROMPT", 1 << 20)
    path = tmp_path / "long.txt"
    path.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(click.ClickException, match=r"long.txt: has more than 1 MiB of text"):
        read_prompt_bytes(path)


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


@pytest.mark.parametrize("command", ["pack", "calibrate", "calibrate --write", "plan"])
def test_every_command_makes_the_folder_of_its_output(tmp_path: Path, command: str) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["llama-relu"])
    words = {"pack": (model,), "plan": ("-m", model, "--vram-budget", "1")}
    arguments = (*command.split(), *words.get(command, ("-m", model)))
    output = tmp_path / "new" / "newer" / "file"
    result = invoke(*arguments, "-o", output)
    assert result.exit_code == 0, result.output
    assert output.stat().st_size
    # Where that is not possible, it is said before anything is computed.
    assert_error(invoke(*arguments, "-o", model / "below" / "file"), "cannot write")


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
