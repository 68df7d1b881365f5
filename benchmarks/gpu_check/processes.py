"""Runs the checks as processes of their own within a time limit, and keeps what they found."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

__all__ = ["Clock", "Ended", "Log", "python", "ran", "started"]


@dataclass
class Clock:
    """How long a part has been going on, and how long it may.

    Attributes:
        began: seconds since the epoch, before the build.
        limit: seconds.
    """

    began: float
    limit: float

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.time() - self.began

    @property
    def left(self) -> float:
        """Seconds; below zero when the time is over."""
        return self.limit - self.seconds


@dataclass(frozen=True)
class Ended:
    """How a process came to its end.

    Attributes:
        code: exit code; None where its time was over.
        seconds: that it took.
    """

    code: int | None
    seconds: float

    @property
    def text(self) -> str:
        """In words."""
        if self.code is None:
            return f"not done after {self.seconds:.0f} s"
        return f"exit code {self.code} after {self.seconds:.0f} s"


@dataclass(frozen=True)
class Log:
    """The one text file of a part; what is printed goes there too.

    Attributes:
        path: of it.
    """

    path: Path

    def __post_init__(self) -> None:
        self.path.write_text("", encoding="utf-8")

    def say(self, text: str) -> None:
        """A line for people, on the terminal and in the file."""
        print(text, flush=True)
        self.write(text + "\n")

    def write(self, text: str) -> None:
        """Only for the file."""
        # Opened anew: processes append to it too.
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)


@contextmanager
def started(
    command: Sequence[str],
    output: IO[str] | int,
    environment: dict[str, str] | None = None,
    *,
    has_group: bool = True,
) -> "Iterator[subprocess.Popen[str]]":
    """A process with those that it starts; all are killed at the end of the block.

    Without a group of its own it is one of those that this process started, and ends with them.
    """
    process = subprocess.Popen(
        command,
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {})},
        start_new_session=has_group,
    )
    try:
        yield process
    finally:
        # The group's number is its own only as long as its first process has not been waited for.
        if process.poll() is None:
            if has_group:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
            process.wait()


def ran(
    command: Sequence[str], log: Log, seconds: float, environment: dict[str, str] | None = None
) -> Ended:
    """Run a process to its end or to the end of its time; what it prints goes to the log."""
    began = time.monotonic()
    log.write(f"\n$ {' '.join(command)}\n")
    # A file: a pipe would stay open as long as anything the process started.
    with (
        log.path.open("a", encoding="utf-8") as output,
        started(command, output, environment) as it,
    ):
        try:
            code: int | None = it.wait(timeout=max(1.0, seconds))
        except subprocess.TimeoutExpired:
            code = None
    return Ended(code, time.monotonic() - began)


def python(*arguments: str) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *arguments]
