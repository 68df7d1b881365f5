"""SIGTERM and SIGHUP end a command in order, as Ctrl-C does: temporary files are removed."""

import signal
import time
from types import FrameType

__all__ = [
    "TerminatedError",
    "exit_code_of_signal",
    "ignore_further_signals",
    "terminate_in_order",
]

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
# A terminal that closes sends SIGHUP more than once; tidying up must not be interrupted by that.
_TIDYING_S = 2.0

_received: list[tuple[int, float]] = []


class TerminatedError(SystemExit):
    """A signal asked the program to end; its code is 128 and the signal's number, as in shells.

    Libraries let `SystemExit` pass, asyncio among them.
    """


def terminate_in_order() -> None:
    """Raise `TerminatedError` in the main thread on these signals, unless they are ignored.

    That is how `nohup` keeps a program going when its terminal closes.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise)


def ignore_further_signals() -> None:
    """Ignore them while the program leaves, when Python would have them end it at once."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def exit_code_of_signal() -> int | None:
    """Exit code after a signal; None where none came."""
    return 128 + _received[0][0] if _received else None


def _raise(number: int, _frame: FrameType | None) -> None:
    now = time.monotonic()
    is_again = bool(_received) and now - _received[-1][1] < _TIDYING_S
    if not is_again:
        _received.append((number, now))
        raise TerminatedError(128 + number)
