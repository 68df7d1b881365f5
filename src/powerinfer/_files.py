"""Small files beside models and in the user's cache folder: read with care, written atomically.

Every layer of the package uses this. The caller passes the error to raise, because only it knows
what the file should be.
"""

import os
import stat
from pathlib import Path

from powerinfer._replacing import make_folder_of, replacing
from powerinfer.errors import PowerInferError

__all__ = ["cache_folder", "cache_root", "format_bytes", "read_small_file", "write_atomically"]


def cache_folder(name: str) -> Path:
    """The user's cache folder for one kind of file; it need not exist yet."""
    return cache_root() / name


def cache_root() -> Path:
    """The folder of all of them. A relative `XDG_CACHE_HOME` is ignored, as its definition says."""
    try:
        from platformdirs import user_cache_path
    except ImportError:
        # `scripts/gpu-check` runs on machines that have few of our dependencies.
        wanted = Path(os.environ.get("XDG_CACHE_HOME", ""))
        root = wanted if wanted.is_absolute() else Path.home() / ".cache"
        return root / "powerinfer"
    return user_cache_path("powerinfer")


def read_small_file(
    path: Path, largest_bytes: int, *, noun: str, error: type[PowerInferError]
) -> bytes:
    """Read a whole file, without waiting for a pipe or reading a device.

    Args:
        path: of the file.
        largest_bytes: that a file of this kind can have.
        noun: what the file should be, for messages: `calibration`.
        error: to raise.

    Raises:
        PowerInferError: as given: it cannot be read, is no regular file, or is too large.
    """
    # Without O_NONBLOCK, opening a pipe without a writer would wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise error(f"{path}: cannot be read: it is no regular file")
            # `read` allocates as much memory as it is asked to read.
            data = file.read(min(status.st_size, largest_bytes) + 1)
    except OSError as problem:
        why = problem.strerror or problem
        if isinstance(problem, FileNotFoundError) and path.is_symlink():
            why = f"it is a symbolic link to {path.readlink()}, which does not exist"
        raise error(f"{path}: cannot be read: {why}") from None
    if len(data) > largest_bytes:
        raise error(f"{path}: has more than {largest_bytes >> 20} MiB, which no {noun} has")
    return data


def write_atomically(path: Path, data: bytes, *, error: type[PowerInferError]) -> Path:
    """Write a file under a temporary name, then rename it; folders are made.

    Args:
        path: of the file; replaced if it exists, untouched if anything fails. Of a symbolic link
            the file it points to is written.
        data: all of it.
        error: to raise.

    Returns:
        The path.

    Raises:
        PowerInferError: as given: it cannot be written, or there is something that is no regular
            file (a device would be gone).
    """
    make_folder_of(path, error=error)
    with replacing(path, error=error) as file:
        file.write(data)
    return path


def format_bytes(count: float) -> str:
    """A size for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
