"""The program on a terminal of its own, and what that has shown."""

import os
import pty
import re
import select
import subprocess
import sys
import termios
from pathlib import Path
from typing import Self

from patience import PATIENCE_S

__all__ = ["Screen"]

# Makes the terminal the one whose keys send signals, as a shell does. Where tests run in the
# background, a shell has both of these signals ignored.
_START = """
import fcntl, runpy, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
sys.argv[0] = "powerinfer"
runpy.run_module("powerinfer", run_name="__main__", alter_sys=True)
"""


class Screen:
    """A program on a pseudo-terminal, and what it has shown, without control sequences."""

    def __init__(self, state_folder: Path, *arguments: str) -> None:
        self._terminal, inner = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env={**os.environ, "XDG_STATE_HOME": str(state_folder), "TERM": "xterm"},
        )
        os.close(inner)
        self.text = ""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self._terminal)

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    def wait_for(self, text: str) -> None:
        """Read until `text` appears behind what was waited for before."""
        while (found := self.text.find(text, self._seen)) < 0:
            assert self._read(), f"{text!r} did not come: {self.text!r}"
        self._seen = found + len(text)

    def wait_for_more(self, count: int) -> None:
        """Read until this many visible characters came."""
        while len("".join(self.text[self._seen :].split())) < count:
            assert self._read(), f"no more came: {self.text!r}"
        self._seen = len(self.text)

    @property
    def echoes(self) -> bool:
        """The terminal shows what is typed."""
        local_modes: int = termios.tcgetattr(self._terminal)[3]
        return bool(local_modes & termios.ECHO)

    def exit_code(self) -> int:
        while self._read():
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self) -> bool:
        assert select.select([self._terminal], [], [], PATIENCE_S)[0], self.text
        try:
            data = os.read(self._terminal, 4096)
        except OSError:  # what Linux says when the other end is closed
            return False
        if b"\x1b[6n" in data:  # prompt_toolkit asks where the cursor is
            self.type(b"\x1b[1;1R")
        self.text += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data.decode("utf-8", "replace"))
        return bool(data)
