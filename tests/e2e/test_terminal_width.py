"""Tables on a real terminal, and in a file."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from patience import PATIENCE_S
from tiny_models import TINY_MODELS, write_model


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """Prints the widest table there is."""
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["bamboo"])
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog. " * 4)
    return [
        *(sys.executable, "-m", "powerinfer", "bench", "--quality"),
        *("-m", str(model), "-f", str(text), "--settings", "exact,sign+lowbit:2"),
        *("-c", "16", "--windows", "1", "--decode", "1", "--repeats", "1"),
    ]


def _without_columns() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "COLUMNS"}


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_a_terminal(command: list[str], width: int) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    try:
        done = subprocess.run(
            command,
            stdout=theirs,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
            env=_without_columns(),
        )
        os.close(theirs)
        shown = _read(ours)
    finally:
        os.close(ours)
    assert done.returncode == 0, done.stderr
    lines = shown.splitlines()
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line.startswith("setting")]
    assert len(heads) > 1
    for name in ("tokens/s", "speedup", "range", "bytes/token", "perplexity", "agreement"):
        assert sum(name in head for head in heads) == 1


def test_a_row_in_a_file_is_one_line(command: list[str]) -> None:
    done = subprocess.run(
        command, capture_output=True, timeout=PATIENCE_S, check=True, env=_without_columns()
    )
    lines = done.stdout.decode().splitlines()
    assert [line.split()[0] for line in lines] == ["setting", "off", "exact", "sign+lowbit:2"]


def _read(terminal: int) -> str:
    shown = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:  # what Linux says when the other end is closed
            return shown.decode()
        shown += data
