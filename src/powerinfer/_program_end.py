"""Protection of the exit code from daemon threads inside C++ and Rust libraries.

At finalization, Python before 3.14 ends every other thread that tries to take the GIL by unwinding
its stack. C++ and Rust code abort the process then, with an exit code other than the program's. The
project's own extension protects itself.
"""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["library_call"]

# A library that hangs must not keep the program from ending for longer than this.
_PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.002


class _Call:
    """A running library call; its frame drops it, however the frame ends."""

    __slots__ = ("__weakref__",)


class _Depth(threading.local):
    """Nesting depth of the calls of this thread."""

    value = 0


_running: "weakref.WeakSet[_Call]" = weakref.WeakSet()
_is_ending = threading.Event()
_depth = _Depth()


@contextmanager
def library_call() -> Iterator[None]:
    """Surround a call that releases the GIL: the end of the program waits for it.

    Once the program is ending, other threads block here for good. The main thread continues, and so
    does a thread inside another such call, which the end waits for already.
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
        time.sleep(_LOOK_EVERY_S)  # threads that have just returned reach their next call


atexit.register(_end)
if hasattr(os, "register_at_fork"):  # the child lacks the threads that called
    os.register_at_fork(after_in_child=_running.clear)
