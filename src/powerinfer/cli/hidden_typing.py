"""A terminal that keeps what is typed without showing it, and is itself again in any case."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any

__all__ = ["hidden_typing"]

# Signals of keys that stop or end a process on the spot; others raise an exception.
_STOPPING = ("SIGQUIT", "SIGTSTP")


@contextmanager
def hidden_typing(descriptor: int) -> Iterator[None]:
    r"""Let a terminal hold typed keys unseen, one by one; Ctrl-C still interrupts.

    The terminal is restored at the end, and also where a key stops or ends the process (Ctrl-Z,
    Ctrl-\). Only the main thread may use it. Without terminals as Unix has them nothing happens.
    """
    try:
        terminal = _Terminal(descriptor)
    except (ImportError, OSError):
        yield
        return
    handlers: dict[int, Any] = {}
    try:
        terminal.hide()
        for number in (getattr(signal, name) for name in _STOPPING):
            if signal.getsignal(number) == signal.SIG_DFL:
                handlers[number] = signal.signal(number, terminal.stop)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        terminal.show()


class _Terminal:
    """Attributes of a terminal, with and without echo."""

    def __init__(self, descriptor: int) -> None:
        import termios

        self._set, self._error = termios.tcsetattr, termios.error
        self._now, self._descriptor = termios.TCSANOW, descriptor
        self._drop_typed = partial(termios.tcflush, descriptor, termios.TCIFLUSH)
        try:
            self._shown = termios.tcgetattr(descriptor)
        except termios.error as error:
            raise OSError(*error.args) from None
        self._hidden = [*self._shown]
        # NOFLSH: Ctrl-C does not discard what was typed.
        self._hidden[3] = (self._shown[3] & ~(termios.ECHO | termios.ICANON)) | termios.NOFLSH
        self._hidden[6] = [*self._shown[6]]
        self._hidden[6][termios.VMIN], self._hidden[6][termios.VTIME] = 1, 0

    def hide(self) -> None:
        self._apply(self._hidden)

    def show(self) -> None:
        self._apply(self._shown)

    def _apply(self, attributes: list[Any]) -> None:
        # It may be closed already.
        with suppress(self._error):
            self._set(self._descriptor, self._now, attributes)

    def stop(self, number: int, _frame: FrameType | None) -> None:
        """Show what is typed while a signal does what it does by default."""
        handler = signal.signal(number, signal.SIG_DFL)
        # What was meant for the program must not become a command of the shell.
        with suppress(self._error):
            self._drop_typed()
        self.show()
        signal.raise_signal(number)
        # Here after Ctrl-Z, when the process goes on; only in the foreground it may set anything.
        signal.signal(number, handler)
        if os.tcgetpgrp(self._descriptor) == os.getpgrp():
            self.hide()
