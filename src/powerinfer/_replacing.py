"""Files that appear whole or not at all: written under a temporary name, then renamed.

A temporary file is locked while its process writes it. One that nobody locks was left behind by a
process that was killed; whoever writes into the same folder next removes it. Where there are no
locks, it is removed once nobody has written to it for a day.
"""

import errno
import hashlib
import os
import platform
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from powerinfer._locks import has_locks, lock, try_lock
from powerinfer.errors import PowerInferError

__all__ = [
    "abandoned_files",
    "find_target",
    "make_folder_of",
    "remove_abandoned",
    "replacing",
]

# The name of the file to be, a mark of the host, a random number.
_NAME = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-[0-9a-f]{8}\.powerinfer\.part", re.DOTALL)
# A file name has at most 255 bytes; the rest of ours takes 34.
_LONGEST_NAME = 200
# Not every network file system tells one host of the locks of another.
_UNTOUCHED_S = 24 * 3600
# Names are given to many hosts ("ubuntu"), this number to one installation.
_MACHINE_ID = Path("/etc/machine-id")
# What file systems without hard links answer.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def replacing(
    path: Path, *, error: type[PowerInferError], is_new: bool = False
) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; rename it on success, remove it on failure.

    Temporary files that killed processes left in the same folder are removed first.

    Args:
        path: of the file; replaced if it exists, untouched if anything fails. Of a symbolic link
            the file it points to is written.
        error: to raise.
        is_new: never replace anything: whatever has the name, a link too, is an error.

    Raises:
        PowerInferError: as given: it cannot be written.
    """
    if is_new:
        _check_is_new(path, error)
    target = path if is_new else find_target(path, error=error)
    remove_abandoned(target.parent)
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])
    number = secrets.token_hex(4)
    temporary = target.with_name(f".{name}.{_host_mark()}-{number}.powerinfer.part")
    try:
        with _open_locked(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not has_locks():
                # Windows renames no open file.
                file.close()
            # Elsewhere it is still locked: without the lock it could be taken for abandoned.
            _rename(temporary, target, error, is_new=is_new)
    except OSError as problem:
        raise error(f"{path}: cannot write: {problem.strerror or problem}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def find_target(path: Path, *, error: type[PowerInferError]) -> Path:
    """The file that writing to `path` would make or replace: links are followed.

    Raises:
        PowerInferError: as given: there is something that is no regular file, such as a device,
            which would be gone; or it cannot be reached.
    """
    try:
        target = path.resolve()
        # What is still a link after following them goes in circles.
        is_free = target.is_file() or not (target.exists() or target.is_symlink())
    except (OSError, RuntimeError) as problem:
        raise error(f"{path}: cannot write: {problem}") from None
    if not is_free:
        raise error(f"{path}: cannot write: it is not a regular file; name another one")
    return target


def _check_is_new(path: Path, error: type[PowerInferError]) -> None:
    if os.path.lexists(path):
        raise error(f"{path}: already exists; name a new file")


def _rename(temporary: Path, target: Path, error: type[PowerInferError], *, is_new: bool) -> None:
    """Give a file its name; one that is to be new replaces nothing."""
    if not is_new:
        temporary.replace(target)
        return
    try:
        os.link(temporary, target)
    except FileExistsError:
        _check_is_new(target, error)
        raise
    except OSError as problem:
        if problem.errno not in _NO_LINKS:
            raise
        _check_is_new(target, error)
        temporary.replace(target)


def make_folder_of(path: Path, *, error: type[PowerInferError]) -> None:
    """Make the folder of a file that is to be written.

    Raises:
        PowerInferError: as given: it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise error(f"{path}: cannot write: {problem.strerror or problem}") from None


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder, as far as possible."""
    for path in abandoned_files(folder):
        with suppress(OSError):
            path.unlink()


def abandoned_files(folder: Path) -> Iterator[Path]:
    """Temporary files in a folder whose process is gone; each is locked while it is yielded.

    Those of another host count only a day after their last change, because its locks may not be
    known here, and so do all of them on a platform without locks; those of another user never do.
    """
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]  # noqa: PTH208  as text
    except OSError:
        return
    for name in names:
        path = folder / name
        with suppress(OSError), _open_existing(path) as file:
            # Fails where somebody has the lock, and on a file system without locks.
            try_lock(file)
            is_abandoned = _is_abandoned(name, os.fstat(file.fileno()))
            if not has_locks():
                file.close()  # Windows removes no open file
            if is_abandoned:
                yield path


def _is_abandoned(name: str, status: os.stat_result) -> bool:
    """Whether a file that nobody locks may go."""
    if not stat.S_ISREG(status.st_mode) or status.st_uid != _user():
        return False
    found = _NAME.fullmatch(name)
    is_of_this_host = found is not None and found["host"] == _host_mark()
    return (is_of_this_host and has_locks()) or time.time() - status.st_mtime > _UNTOUCHED_S


def _open_existing(path: Path) -> BinaryIO:
    # A lock on a network file system needs a file that is open for writing.
    flags = os.O_RDWR
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)  # Windows lacks some, the others lack one
    return os.fdopen(os.open(path, flags), "r+b")


def _open_locked(path: Path) -> BinaryIO:
    """Make a file that other processes see locked, or not at all."""
    while True:
        file = path.open("xb")
        with suppress(OSError):  # some file systems have no locks
            lock(file)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        # Removed as abandoned in the moment before it was locked.
        file.close()


def _user() -> int:
    """Number of the user that this process writes files as; 0, as for all files, on Windows."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


@cache
def _host_mark() -> str:
    """Tells hosts apart by their names and, as far as they have one, the number of their system."""
    number = b""
    with suppress(OSError):
        number = _MACHINE_ID.read_bytes().strip()
    return hashlib.sha256(platform.node().encode() + b"\n" + number).hexdigest()[:8]
