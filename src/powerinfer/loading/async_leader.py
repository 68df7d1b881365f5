"""Computes for asyncio tasks, so that their loops stay free."""

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Event

__all__ = ["AsyncLeader", "AsyncWaiter"]

# The thread goes when so long no task has waited: a new one takes a tenth of a millisecond.
_LINGER_S = 0.2

# It has nothing more to do than to find out.
_PATIENCE_S = 1.0


class AsyncWaiter:
    """A task that waits.

    Attributes:
        is_done: whether it need not wait any more.
        wait: computes until something is done; of the model.
        error: what computing for it raised.
    """

    def __init__(
        self,
        is_done: Callable[[], bool],
        wait: Callable[[Callable[[], bool]], None],
        loop: "AbstractEventLoop",
        news: "Event",
    ) -> None:
        """Of the running task.

        Args:
            is_done: see the class.
            wait: see the class.
            loop: of the task.
            news: set when the task should look again.
        """
        self.is_done = is_done
        self.wait = wait
        self.error: BaseException | None = None
        self._loop = loop
        self._news = news

    def tell(self) -> None:
        """Wake the task."""
        with suppress(RuntimeError):  # the loop was closed
            self._loop.call_soon_threadsafe(self._news.set)


class AsyncLeader:
    """One thread that waits for all tasks, as long as some wait."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._lock = threading.Lock()
        self._waiters: tuple[AsyncWaiter, ...] = ()
        self._is_running = False
        self._thread: threading.Thread | None = None
        self._linger_s = _LINGER_S
        self._news: SimpleQueue[None] = SimpleQueue()

    def add(self, waiter: AsyncWaiter) -> None:
        """Compute until it is done or removed."""
        with self._lock:
            self._waiters += (waiter,)
            is_first, self._is_running = not self._is_running, True
        if is_first:
            self._thread = threading.Thread(target=self._run, name="powerinfer", daemon=True)
            self._thread.start()
        else:
            self._news.put(None)

    def remove(self, waiter: AsyncWaiter) -> None:
        """Compute for it no more."""
        with self._lock:
            self._waiters = tuple(each for each in self._waiters if each is not waiter)

    def stop(self) -> None:
        """Wait until the thread is gone, of a model for which nobody can wait any more."""
        self._linger_s = 0.0
        self._news.put(None)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE_S)

    def tell(self) -> None:
        """Wake the tasks that need not wait any more."""
        for waiter in self._waiters:
            if waiter.is_done():
                waiter.tell()

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
        waiter.tell()


def _is_served(waiter: AsyncWaiter) -> bool:
    return waiter.error is not None or waiter.is_done()
