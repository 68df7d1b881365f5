"""Atomic files: written under a temporary name, then renamed.

A temporary file is locked while its process writes it. An unlocked one was abandoned by a killed
process, and the next writer in the same folder removes it. Where there are no locks, it is removed
after a day without a change.
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

from powerinfer._locks import has_locks, is_at, lock, try_lock
from powerinfer.errors import PowerInferError

__all__ = [
    "abandoned_files",
    "find_target",
    "make_folder_of",
    "remove_abandoned",
    "replacing",
]

# Name of the target, mark of the host, random number.
_NAME = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-[0-9a-f]{8}\.powerinfer\.part", re.DOTALL)
# A file name has at most 255 bytes; the rest of ours takes 34.
_LONGEST_NAME = 200
# Not every network file system shows one host the locks of another.
_UNTOUCHED_S = 24 * 3600
# Many hosts share a name ("ubuntu"); this number belongs to one installation.
_MACHINE_ID = Path("/etc/machine-id")
# Errors of file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@contextmanager
def replacing(
    path: Path, *, error: type[PowerInferError], is_new: bool = False
) -> Iterator[BinaryIO]:
    """Open a temporary file next to `path`; rename it on success, remove it on failure.

    Abandoned temporary files in the same folder are removed first.

    Args:
        path: target; replaced if it exists, untouched on failure. A symbolic link is followed.
        error: class of error to raise.
        is_new: fail if anything, even a link, has this name.

    Raises:
        PowerInferError: as `error`: the file cannot be written.
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
                file.close()  # Windows cannot rename an open file
            # Elsewhere the file stays locked: unlocked, it could be taken for abandoned.
            _rename(temporary, target, error, is_new=is_new)
    except OSError as problem:
        raise error(f"{path}: cannot write: {problem.strerror or problem}") from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def find_target(path: Path, *, error: type[PowerInferError]) -> Path:
    """Follow links to the file that writing to `path` would create or replace.

    Raises:
        PowerInferError: as `error`: the target is not a regular file (a device would be replaced)
            or cannot be reached.
    """
    try:
        target = path.resolve()
        # A resolved path that is still a link is a loop.
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
    """Rename a file; with `is_new`, without replacing anything."""
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
    """Create the folder of a file.

    Raises:
        PowerInferError: as `error`: it cannot be created.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise error(f"{path}: cannot write: {problem.strerror or problem}") from None


def remove_abandoned(folder: Path) -> None:
    """Remove the abandoned temporary files of a folder, as far as possible."""
    for path in abandoned_files(folder):
        with suppress(OSError):
            path.unlink()


def abandoned_files(folder: Path) -> Iterator[Path]:
    """Yield the abandoned temporary files of a folder, each locked meanwhile.

    A file of another host counts as abandoned a day after its last change, because its locks may be
    invisible here; so does any file on a platform without locks. A file of another user never does.
    """
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]  # noqa: PTH208  as text
    except OSError:
        return
    for name in names:
        path = folder / name
        with suppress(OSError), _open_existing(path) as file:
            try_lock(file)  # fails if it is locked, and on a file system without locks
            is_abandoned = _is_abandoned(name, os.fstat(file.fileno()))
            if not has_locks():
                file.close()  # Windows cannot remove an open file
            if is_abandoned:
                yield path


def _is_abandoned(name: str, status: os.stat_result) -> bool:
    """Return whether an unlocked temporary file may be removed."""
    if not stat.S_ISREG(status.st_mode) or status.st_uid != _user():
        return False
    found = _NAME.fullmatch(name)
    is_of_this_host = found is not None and found["host"] == _host_mark()
    return (is_of_this_host and has_locks()) or time.time() - status.st_mtime > _UNTOUCHED_S


def _open_existing(path: Path) -> BinaryIO:
    # Network file systems lock only files open for writing.
    flags = os.O_RDWR
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
        flags |= getattr(os, name, 0)  # no platform has all of them
    return os.fdopen(os.open(path, flags), "r+b")


def _open_locked(path: Path) -> BinaryIO:
    """Create a file that is locked from the moment other processes can see it."""
    while True:
        file = path.open("xb")
        with suppress(OSError):  # some file systems have no locks
            lock(file)
        if is_at(path, file):
            return file
        file.close()  # another process removed it as abandoned before it was locked


def _user() -> int:
    """Return the id of the user that owns new files; on Windows 0, the owner of all files."""
    return os.geteuid() if hasattr(os, "geteuid") else 0


@cache
def _host_mark() -> str:
    """Return a hash of the host's name and machine id, if it has one."""
    number = b""
    with suppress(OSError):
        number = _MACHINE_ID.read_bytes().strip()
    return hashlib.sha256(platform.node().encode() + b"\n" + number).hexdigest()[:8]
