"""A lock that is given away in the order in which it was asked for."""

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from powerinfer.engine.turn import wait_for
from powerinfer.errors import PowerInferError

__all__ = ["FairLock"]


class _Place:
    """A place in the line; its user's frame drops it, whatever ends the frame."""

    __slots__ = ("__weakref__", "news", "thread_id")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()
        self.news: SimpleQueue[None] = SimpleQueue()


class FairLock:
    """Held by one thread at a time, the first in the line.

    A `threading.Lock` may go to the thread that has just released it again and again. Two models
    that decode side by side would then not take turns.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._line: deque[weakref.ref[_Place]] = deque()

    @property
    def num_waiting(self) -> int:
        """Threads that wait while another one holds the lock."""
        with self._guard:
            return max(0, sum(place() is not None for place in self._line) - 1)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, and hold it until the block ends.

        Raises:
            PowerInferError: this thread holds it already.
        """
        place = _Place()
        first = self._first()
        if first is not None and first.thread_id == place.thread_id:
            raise PowerInferError("a step was started from inside another step of the same weights")
        try:
            with self._guard:
                self._line.append(weakref.ref(place))
            while self._first() is not place:
                wait_for(place.news)
            yield
        finally:
            self._leave(place)

    def _first(self) -> _Place | None:
        with self._guard:
            while self._line:
                place = self._line[0]()
                if place is not None:
                    return place
                self._line.popleft()
        return None

    def _leave(self, place: _Place) -> None:
        with self._guard, suppress(ValueError):
            self._line.remove(weakref.ref(place))
        first = self._first()
        if first is not None:
            first.news.put(None)
