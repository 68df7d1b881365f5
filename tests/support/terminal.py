"""Terminals for tests: one in place of stderr, a real pseudo-terminal, and what both show."""

import io
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

import pytest

from patience import PATIENCE_S

__all__ = ["Terminal", "run_on_terminal", "shown_lines", "terminal_as_stderr"]

_CONTROL = re.compile(r"\x1b\[(?P<number>\d*)(?P<letter>[A-K])|\x1b\[[?\d;]*[a-zA-Z]")


class Terminal(io.StringIO):
    """Takes what is written to stderr and says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def taken(self) -> str:
        """What was written since the last call."""
        text = self.getvalue()
        self.truncate(0)
        self.seek(0)
        return text


def terminal_as_stderr(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put a terminal in place of stderr; pytest would undo a fixture that did it."""
    stream = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def run_on_terminal(command: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """All that a program writes to a pseudo-terminal that is its stdout and stderr."""
    outer, inner = pty.openpty()
    try:
        with subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=inner,
            stderr=inner,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", **(env or {})},
        ) as process:
            os.close(inner)
            hung = threading.Timer(PATIENCE_S, process.kill)
            hung.start()
            written = b""
            # Linux ends the output of a program that is gone with an error.
            try:
                while part := os.read(outer, 4096):
                    written += part
            except OSError:
                pass
            finally:
                hung.cancel()
            process.wait(PATIENCE_S)
    finally:
        os.close(outer)
    return written.decode(errors="replace")


def shown_lines(written: str) -> list[str]:
    """The lines that stand on a wide terminal in the end, without colours."""
    lines, row, column = [""], 0, 0
    position = 0
    while position < len(written):
        control = _CONTROL.match(written, position)
        if control is not None:
            position = control.end()
            if control["letter"] == "A":
                row = max(0, row - int(control["number"] or 1))
            elif control["letter"] == "K":
                lines[row] = "" if control["number"] == "2" else lines[row][:column]
            continue
        character = written[position]
        position += 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        else:
            lines[row] = lines[row].ljust(column)[:column] + character + lines[row][column + 1 :]
            column += 1
    return [line.rstrip() for line in lines]
