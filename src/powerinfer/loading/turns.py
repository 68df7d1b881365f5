"""Turns of computing: a fair lock for threads, and a thread that waits for asyncio tasks."""

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from traceback import clear_frames
from typing import TYPE_CHECKING

from powerinfer.errors import PowerInferError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event

__all__ = ["LOOK_EVERY_S", "AsyncLeader", "AsyncWaiter", "FairLock"]

# Waiters poll, as neither a thread that ends nor a place that Ctrl-C removed notifies them.
LOOK_EVERY_S = 0.05

# The thread ends after this time without tasks: starting a new one takes a tenth of a millisecond.
_LINGER_S = 0.2

# A thread that is told to stop only has to notice it.
_PATIENCE_S = 1.0


class _Place:
    """A place in line, kept alive only by its user's frame and so dropped however that ends."""

    __slots__ = ("__weakref__", "news", "thread_id")

    def __init__(self) -> None:
        self.thread_id = threading.get_ident()
        self.news: SimpleQueue[None] = SimpleQueue()

    def wait(self) -> None:
        """Wait until something may have changed."""
        with suppress(Empty):
            self.news.get(timeout=LOOK_EVERY_S)


class FairLock:
    """A lock that threads get in the order in which they ask for it.

    A `threading.Lock` may go again and again to the thread that has just released it, so that two
    models that decode side by side would not take turns. And Ctrl-C may come between any two lines:
    this lock belongs to a frame and is free when the frame is gone.
    """

    def __init__(
        self, reentered: str = "a step was started from inside another step of the same weights"
    ) -> None:
        """Start unlocked; `reentered` is the error message for a thread that holds it already."""
        self._reentered = reentered
        self._guard = threading.Lock()
        self._line: deque[weakref.ref[_Place]] = deque()

    @property
    def num_waiting(self) -> int:
        """Number of threads that wait for the lock."""
        with self._guard:
            return max(0, sum(place() is not None for place in self._line) - 1)

    def check_not_held_here(self) -> None:
        """Raise PowerInferError if this thread holds the lock, and so would wait for itself."""
        if self._is_held_here() and (error := sys.exception()) is not None:
            # Ctrl-C at the start of a context manager's `__exit__` leaves the lock to the frames of
            # the traceback; those that still run are not cleared.
            clear_frames(error.__traceback__)
        if self._is_held_here():
            raise PowerInferError(self._reentered)

    def _is_held_here(self) -> bool:
        first = self._first()
        return first is not None and first.thread_id == threading.get_ident()

    def held(self) -> AbstractContextManager[bool]:
        """Wait for the lock and hold it until the block ends."""
        return self.held_until(lambda: False)

    @contextmanager
    def held_until(self, is_done: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the lock or until `is_done`; yield whether the lock is held.

        A free lock is taken at once. Else `is_done` is checked now and whenever others release the
        lock or call `notify`.

        Raises:
            PowerInferError: this thread holds it already.
        """
        if self._line:  # holds a place of this thread if it holds the lock
            self.check_not_held_here()
        place = _Place()
        try:
            with self._guard:
                self._line.append(weakref.ref(place))
            while not (is_held := self._first() is place) and not is_done():
                place.wait()
            yield is_held
        finally:
            self._leave(place)

    def notify(self) -> None:
        """Wake all waiters, so that they check whether they are done."""
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


@dataclass(slots=True, eq=False)
class AsyncWaiter:
    """A waiting asyncio task.

    Attributes:
        wait: computes until a condition holds; a method of the engine.
        loop: loop of the task.
        news: event to set when the task should check `is_done`.
        error: the exception of computing for it.
    """

    is_done: Callable[[], bool]
    wait: Callable[[Callable[[], bool]], None]
    loop: "AbstractEventLoop"
    news: "Event"
    error: BaseException | None = None

    def notify(self) -> None:
        """Wake the task."""
        with suppress(RuntimeError):  # the loop was closed
            self.loop.call_soon_threadsafe(self.news.set)


class AsyncLeader:
    """A thread that computes for asyncio tasks while some wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: tuple[AsyncWaiter, ...] = ()
        self._is_running = False
        self._thread: threading.Thread | None = None
        self._linger_s = _LINGER_S
        self._news: SimpleQueue[None] = SimpleQueue()

    def add(self, waiter: AsyncWaiter) -> None:
        """Compute for a task until it is done or removed."""
        with self._lock:
            self._waiters += (waiter,)
            is_first, self._is_running = not self._is_running, True
        if is_first:
            self._thread = threading.Thread(target=self._run, name="powerinfer", daemon=True)
            self._thread.start()
        else:
            self._news.put(None)

    def remove(self, waiter: AsyncWaiter) -> None:
        """Stop computing for a task."""
        with self._lock:
            self._waiters = tuple(each for each in self._waiters if each is not waiter)

    def stop(self) -> None:
        """Stop the thread and wait for its end; nobody may wait any more."""
        self._linger_s = 0.0
        self._news.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE_S)

    def notify(self) -> None:
        """Wake the tasks that are done."""
        for waiter in self._waiters:
            if waiter.is_done():
                waiter.notify()

    def _run(self) -> None:
        while True:
            waiter = next((each for each in self._waiters if not _is_served(each)), None)
            if waiter is not None:
                self._serve(waiter)
                del waiter
                continue
            with suppress(Empty):
                self._news.get(timeout=self._linger_s)
                continue
            with self._lock:
                if all(_is_served(each) for each in self._waiters):
                    self._is_running = False
                    return

    def _serve(self, waiter: AsyncWaiter) -> None:
        try:
            waiter.wait(lambda: waiter.is_done() or waiter not in self._waiters)
        except BaseException as error:  # noqa: BLE001  the task raises it
            waiter.error = error
        waiter.notify()


def _is_served(waiter: AsyncWaiter) -> bool:
    return waiter.error is not None or waiter.is_done()
