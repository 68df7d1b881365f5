"""Keeps daemon threads out of libraries that abort the process if they are met there at its end.

When Python finalizes, it ends every other thread that comes back from a library and asks for
Python's lock, by unwinding its stack (until 3.13). C++ and Rust code abort the process then, with
another exit code than the program's. The project's own extension protects itself.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["library_call"]

# A library that does not come back for so long must not keep the program from ending.
_PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.002


class _Call:
    """Exists while a library is called; its frame drops it, whatever ends the frame."""

    __slots__ = ("__weakref__",)


class _Depth(threading.local):
    """How many calls of this thread lie inside each other."""

    value = 0


_running: "weakref.WeakSet[_Call]" = weakref.WeakSet()
_is_ending = threading.Event()
_depth = _Depth()


@contextmanager
def library_call() -> Iterator[None]:
    """Surround a call that gives up Python's lock: the program's end waits for it.

    Once the program ends, a daemon thread stays here for good. The main thread goes on, and so does
    a thread that is inside another such call, which the end waits for already.
    """
    call = _Call()
    _running.add(call)
    is_main = threading.current_thread() is threading.main_thread()
    if _is_ending.is_set() and not is_main and not _depth.value:
        del call
        threading.Event().wait()
    _depth.value += 1
    try:
        yield
    finally:
        _depth.value -= 1


def _end() -> None:
    _is_ending.set()
    deadline = time.monotonic() + _PATIENCE_S
    while len(_running) and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    if threading.active_count() > 1:
        time.sleep(_LOOK_EVERY_S)  # those that have just come back get to the next call


atexit.register(_end)
if hasattr(os, "register_at_fork"):  # the child lacks the threads that called
    os.register_at_fork(after_in_child=_running.clear)
