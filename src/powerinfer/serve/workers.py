"""Threads beside the event loop: a pool for slow functions, and one that ends with the program."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

__all__ = ["Workers", "in_daemon_thread"]

P = ParamSpec("P")
T = TypeVar("T")

# Tokenizing, templates and grammars mostly hold Python's lock: more threads gain little.
_NUM_THREADS = 4


class Workers(ThreadPoolExecutor):
    """A pool for slow functions, so that the event loop stays responsive."""

    def __init__(self) -> None:
        super().__init__(_NUM_THREADS, thread_name_prefix="requests")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function in the pool."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self, lambda: function(*args, **kwargs))


def in_daemon_thread(function: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Call a function in a daemon thread, which does not keep the program alive."""
    result = Future[T]()
    # The thread goes on when whoever waits gives up.
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(function())
        except BaseException as error:  # noqa: BLE001  whoever waits gets it
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return asyncio.wrap_future(result)
