"""Progress on stderr: bars on a terminal, elsewhere a line a minute."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

import click

from powerinfer._files import format_bytes
from powerinfer.cli.signals import TerminatedError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["BEGINS_AGAIN", "ProgressBar", "clear_line", "when_stopped"]

_INTERVAL_S = 0.1
_LINE_EVERY_S = 60.0
BEGINS_AGAIN = "stopped; nothing was kept: the same command begins again"


class ProgressBar:
    """A bar that appears with the first report and disappears when everything is done.

    Call it with (done, total), also for several tasks in a row. As a context manager it disappears
    in any case, so that an error gets a line of its own. A terminal shows one bar at a time: a new
    one replaces the one before. Where stderr is no terminal, there is at most a line a minute.
    """

    # The bar that is on the terminal now.
    _shown: ClassVar["ProgressBar | None"] = None
    # When the last line was written.
    _told_at: ClassVar[float] = -math.inf

    def __init__(
        self, what: str, *, unit: str = "", shown_from: int = 0, delay_s: float = 0.0
    ) -> None:
        """Show nothing yet.

        Args:
            unit: unit of the numbers, `bytes` or a plural noun; without one, a percentage.
            shown_from: smallest total that gets a bar.
            delay_s: seconds from the first report before the bar appears.
        """
        self._what, self._unit, self._shown_from = what, unit, shown_from
        self._delay_s = delay_s
        self._began_at: float | None = None
        self._bar: Progress | None = None
        self._shown_at = 0.0
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self, done: int, total: int, what: str | None = None) -> None:
        """Show progress; `what` replaces the text before the bar."""
        if total < self._shown_from:
            return
        if not sys.stderr.isatty():
            self._tell(done, total, what or self._what)
            return
        if done >= total:
            self.close()
            return
        now = time.monotonic()
        self._began_at = now if self._began_at is None else self._began_at
        if now - self._began_at < self._delay_s:
            return
        if self._bar is None or self._task is None:
            clear_line()
            self._bar = self._new_bar()
            self._task = self._bar.add_task(self._what, total=total)
            self._bar.start()
            ProgressBar._shown = self
        # Not drawn by a thread, which would take time from what is measured.
        is_due = now - self._shown_at >= _INTERVAL_S
        self._shown_at = now if is_due else self._shown_at
        self._bar.update(
            self._task,
            completed=done,
            total=total,
            description=what or self._what,
            refresh=is_due,
        )

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            ProgressBar._shown = None
        self._bar = self._task = self._began_at = None

    def _tell(self, done: int, total: int, what: str) -> None:
        """Write a line if a minute has passed since the first report and since the last line."""
        now = time.monotonic()
        began = now if self._began_at is None else self._began_at
        # What shows no bar for a moment is done often, and each time begins anew.
        self._began_at = None if self._delay_s and done >= total else began
        if now - max(began, ProgressBar._told_at) < _LINE_EVERY_S:
            return
        ProgressBar._told_at = now
        numbers = f"{done} of {total} {self._unit}, " if self._unit else ""
        if self._unit == "bytes":
            numbers = f"{format_bytes(done)} of {format_bytes(total)}, "
        click.echo(f"{what}: {numbers}{100 * done // max(total, 1)} %", err=True)

    def _new_bar(self) -> "Progress":
        from rich import progress
        from rich.console import Console

        numbers: list[progress.ProgressColumn] = [progress.TaskProgressColumn()]
        if self._unit == "bytes":
            numbers = [progress.DownloadColumn(binary_units=True)]
        elif self._unit:
            numbers = [progress.MofNCompleteColumn(), progress.TextColumn(self._unit)]
        return progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            *numbers,
            progress.TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        )


def clear_line() -> None:
    """Remove the bar that is shown, if any, before something else is written to stderr."""
    if ProgressBar._shown is not None:
        ProgressBar._shown.close()


@contextmanager
def when_stopped(advice: str) -> Iterator[None]:
    """Say on stderr how to go on when Ctrl-C or a signal ends what is inside."""
    try:
        yield
    except (KeyboardInterrupt, TerminatedError):
        clear_line()
        click.echo(advice, err=True)
        raise
