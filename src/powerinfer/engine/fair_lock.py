"""A lock that is given away in the order in which it was asked for."""

import threading
from collections import deque

from powerinfer.errors import PowerInferError

__all__ = ["FairLock"]


class FairLock:
    """Held by one thread at a time; use it in a `with` statement.

    A `threading.Lock` may go to the thread that has just released it again and again. Two models
    that decode side by side would then not take turns.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: int | None = None
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        thread_id = threading.get_ident()
        if self._owner == thread_id:
            raise PowerInferError("a step was started from inside another step of the same weights")
        with self._guard:
            if self._owner is None:
                self._owner = thread_id
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append((thread_id, gate))
        try:
            gate.acquire()
        except BaseException:
            self._leave(thread_id, gate)
            raise

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._pass_on()

    def _leave(self, thread_id: int, gate: threading.Lock) -> None:
        """Stop waiting, because Ctrl-C was pressed; the lock may have been given meanwhile."""
        with self._guard:
            if self._owner == thread_id:
                self._pass_on()
            else:
                self._waiting.remove((thread_id, gate))

    def _pass_on(self) -> None:
        self._owner = None
        if self._waiting:
            self._owner, gate = self._waiting.popleft()
            gate.release()
