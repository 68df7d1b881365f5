"""Files that appear whole or not at all: written under a temporary name, then renamed.

A temporary file is locked while its process writes it. One that nobody locks was left behind by a
process that was killed; whoever writes into the same folder next removes it.
"""

import fcntl
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

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


@contextmanager
def replacing(path: Path, *, error: type[PowerInferError]) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; rename it on success, remove it on failure.

    Temporary files that killed processes left in the same folder are removed first.

    Args:
        path: of the file; replaced if it exists, untouched if anything fails. Of a symbolic link
            the file it points to is written.
        error: to raise.

    Raises:
        PowerInferError: as given: it cannot be written.
    """
    target = find_target(path, error=error)
    remove_abandoned(target.parent)
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])
    number = secrets.token_hex(4)
    temporary = target.with_name(f".{name}.{_host_mark()}-{number}.powerinfer.part")
    try:
        with _open_locked(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            # Still locked: without the lock it could be taken for abandoned.
            temporary.replace(target)
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
    known here; those of another user never do.
    """
    try:
        names = [name for name in os.listdir(folder) if _NAME.fullmatch(name)]  # noqa: PTH208  as text
    except OSError:
        return
    for name in names:
        path = folder / name
        with suppress(OSError), _open_existing(path) as file:
            # Fails where somebody has the lock, and where there are no locks.
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_abandoned(name, os.fstat(file.fileno())):
                yield path


def _is_abandoned(name: str, status: os.stat_result) -> bool:
    """Whether a file that nobody locks may go."""
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        return False
    found = _NAME.fullmatch(name)
    is_of_this_host = found is not None and found["host"] == _host_mark()
    return is_of_this_host or time.time() - status.st_mtime > _UNTOUCHED_S


def _open_existing(path: Path) -> BinaryIO:
    # A lock on a network file system needs a file that is open for writing.
    return os.fdopen(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "r+b")


def _open_locked(path: Path) -> BinaryIO:
    """Make a file that other processes see locked, or not at all."""
    while True:
        file = path.open("xb")
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        # Removed as abandoned in the moment before it was locked.
        file.close()


def _host_mark() -> str:
    return hashlib.sha256(os.uname().nodename.encode()).hexdigest()[:8]
