"""Locks on open files, as far as the platform and the file system have them."""

from typing import BinaryIO

__all__ = ["has_locks", "lock", "try_lock"]


def has_locks() -> bool:
    """Whether this platform has such locks at all; Windows does not."""
    try:
        import fcntl  # noqa: F401
    except ImportError:
        return False
    return True


def lock(file: BinaryIO) -> None:
    """Lock a file until it is closed or its process ends; waits for whoever has the lock.

    Raises:
        OSError: the file system has no locks.
    """
    if has_locks():
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


def try_lock(file: BinaryIO) -> None:
    """Lock a file until it is closed, without waiting; on a platform without locks do nothing.

    Raises:
        OSError: somebody has the lock, or the file system has no locks.
    """
    if has_locks():
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
