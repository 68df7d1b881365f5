"""SIGTERM and SIGHUP end a command in order, as Ctrl-C does: temporary files are removed."""

import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

__all__ = [
    "TerminatedError",
    "exit_code_of_signal",
    "ignore_further_signals",
    "terminate_in_order",
]

# Windows has no SIGHUP.
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
# A terminal that closes sends SIGHUP more than once; tidying up must not be interrupted by that.
_TIDYING_S = 2.0
_AGAIN_AFTER_S = 0.01

_received: list[tuple[int, float]] = []
# Signals whose error could not be raised.
_lost: list[int] = []


class TerminatedError(SystemExit):
    """A signal asked the program to end; libraries let `SystemExit` pass, asyncio among them.

    Attributes:
        exit_code: 128 and the signal's number, as in shells.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.exit_code = 128 + number
        super().__init__(self.exit_code)


def terminate_in_order() -> None:
    """Raise `TerminatedError` in the main thread on these signals, unless they are ignored.

    That is how `nohup` keeps a program going when its terminal closes.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise)
    sys.unraisablehook = _send_again


def ignore_further_signals() -> None:
    """Ignore SIGTERM and SIGHUP while the program exits, which they would cut short."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def exit_code_of_signal() -> int | None:
    """Exit code after a signal; None if none came."""
    return 128 + _received[0][0] if _received else None


def _raise(number: int, frame: FrameType | None) -> None:
    if _is_inside_hook(frame):
        _lost.append(number)
        return
    now = time.monotonic()
    is_again = bool(_received) and now - _received[-1][1] < _TIDYING_S
    if not is_again:
        _received.append((number, now))
        raise TerminatedError(number)


def _is_inside_hook(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _send_again.__code__:
        frame = frame.f_back
    return frame is not None


def _send_again(unraisable: "UnraisableHookArgs") -> None:
    """Resend a signal whose error Python could not raise, because it came inside a `__del__`.

    Later and from a thread, because an error raised in this function would be lost too.
    """
    error = unraisable.exc_value
    if isinstance(error, TerminatedError):
        _lost.append(error.number)
    else:
        sys.__unraisablehook__(unraisable)
    main, delay = threading.main_thread().ident, _AGAIN_AFTER_S
    while _lost and main is not None:
        number = _lost.pop()
        _received.clear()
        again = threading.Timer(delay, signal.pthread_kill, (main, number))
        again.daemon = True
        again.start()
        # If it still comes inside this function, the next one must come later.
        delay *= 2
