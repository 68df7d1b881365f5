"""A lock that is given away in the order in which it was asked for."""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from powerinfer.errors import PowerInferError

__all__ = ["LOOK_EVERY_S", "FairLock"]

# A thread that ends tells nobody, nor does a place that Ctrl-C took out of the line. So those who
# wait look now and then.
LOOK_EVERY_S = 0.05


class _Place:
    """A place in the line; its user's frame drops it, whatever ends the frame."""

    __slots__ = ("__weakref__", "news", "thread_id")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()
        self.news: SimpleQueue[None] = SimpleQueue()

    def wait(self) -> None:
        """Until something may have changed."""
        with suppress(Empty):
            self.news.get(timeout=LOOK_EVERY_S)


class FairLock:
    """Held by one thread at a time, the first in the line.

    A `threading.Lock` may go to the thread that has just released it again and again. Two models
    that decode side by side would then not take turns. And Ctrl-C may come between any two lines:
    this lock belongs to a frame, and is free when the frame is gone.
    """

    def __init__(
        self, reentered: str = "a step was started from inside another step of the same weights"
    ) -> None:
        """Nobody holds it.

        Args:
            reentered: what a thread is told that asks for it while it holds it.
        """
        self._reentered = reentered
        self._guard = threading.Lock()
        self._line: deque[weakref.ref[_Place]] = deque()

    @property
    def num_waiting(self) -> int:
        """Threads that wait while another one holds the lock."""
        with self._guard:
            return max(0, sum(place() is not None for place in self._line) - 1)

    def check_not_held_here(self) -> None:
        """Refuse to wait for oneself.

        Raises:
            PowerInferError: this thread holds the lock.
        """
        first = self._first()
        if first is not None and first.thread_id == threading.get_ident():
            raise PowerInferError(self._reentered)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Wait for the lock, and hold it until the block ends.

        Raises:
            PowerInferError: this thread holds it already.
        """
        with self.held_unless(lambda: False):
            yield

    @contextmanager
    def held_unless(self, is_done: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the lock or until nothing is left to be done; yields whether it is held.

        Args:
            is_done: asked whenever others release the lock or call `tell`.

        Raises:
            PowerInferError: this thread holds it already.
        """
        self.check_not_held_here()
        place = _Place()
        try:
            with self._guard:
                self._line.append(weakref.ref(place))
            while not is_done():
                if self._first() is place:
                    yield True
                    return
                place.wait()
            yield False
        finally:
            self._leave(place)

    def tell(self) -> None:
        """Have all who wait look whether something is left for them to be done."""
        with self._guard:
            places = [place() for place in self._line]
        for place in places:
            if place is not None:
                place.news.put(None)

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
