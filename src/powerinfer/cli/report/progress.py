"""Progress bars on stderr; nothing if it is not a terminal."""

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

__all__ = ["ProgressBar", "clear_line"]

_INTERVAL_S = 0.1


class ProgressBar:
    """A bar that appears with the first report and disappears when everything is done.

    Call it with (done, total), also for several tasks in a row. As a context manager it disappears
    in any case, so that an error gets a line of its own. A terminal shows one bar at a time: a new
    one replaces the one before.
    """

    # The bar that is on the terminal now.
    _shown: ClassVar["ProgressBar | None"] = None

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
        if total < self._shown_from or not sys.stderr.isatty():
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
