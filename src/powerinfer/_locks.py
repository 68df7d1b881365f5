"""Locks on open files, where the platform and the file system support them."""

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

__all__ = ["has_locks", "is_at", "lock", "try_lock"]


def has_locks() -> bool:
    """Return whether this platform has file locks; Windows does not."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return False
    return True


def lock(file: BinaryIO) -> None:
    """Lock a file until it is closed or its process ends; waits for the current holder.

    Raises:
        OSError: the file system has no locks.
    """
    if has_locks():
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: BinaryIO) -> None:
    """Lock a file until it is closed, without waiting; does nothing on platforms without locks.

    Raises:
        OSError: the file is locked already, or the file system has no locks.
    """
    if has_locks():
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_at(path: Path, file: BinaryIO) -> bool:
    """Return whether a path still leads to an open file: another process may have moved it."""
    with suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    return False
