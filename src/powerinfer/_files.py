"""Safe reading and atomic writing of small files next to models and in the user's cache folder.

The caller passes the error class to raise, because only it knows the purpose of the file.
"""

import os
import stat
from pathlib import Path

from powerinfer._replacing import make_folder_of, replacing
from powerinfer.errors import PowerInferError

__all__ = [
    "cache_folder",
    "cache_root",
    "decimal_bytes",
    "format_bytes",
    "read_small_file",
    "write_atomically",
]


def cache_folder(name: str) -> Path:
    """Return the user's cache folder for one kind of file; it may not exist yet."""
    return cache_root() / name


def cache_root() -> Path:
    """Return the parent of all cache folders.

    A relative `XDG_CACHE_HOME` is ignored, as the XDG specification requires.
    """
    try:
        from platformdirs import user_cache_path
    except ImportError:
        # `scripts/gpu-check` runs on machines with few of our dependencies.
        wanted = Path(os.environ.get("XDG_CACHE_HOME", ""))
        root = wanted if wanted.is_absolute() else Path.home() / ".cache"
        return root / "powerinfer"
    return user_cache_path("powerinfer")


def read_small_file(
    path: Path, largest_bytes: int, *, noun: str, error: type[PowerInferError]
) -> bytes:
    """Read a whole file; never blocks on a pipe and never reads a device.

    Args:
        largest_bytes: size limit for files of this kind.
        noun: kind of file for messages, such as `calibration`.
        error: class of error to raise.

    Raises:
        PowerInferError: as `error`: the file cannot be read, is not a regular file or is too large.
    """
    # Without O_NONBLOCK, opening a pipe without a writer would block forever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise error(f"{path}: cannot be read: it is not a regular file")
            # `read` allocates as much memory as it is asked to read.
            is_too_large = status.st_size > largest_bytes
            data = b"" if is_too_large else file.read(status.st_size + 1)
    except OSError as problem:
        why = problem.strerror or problem
        if isinstance(problem, FileNotFoundError) and path.is_symlink():
            why = f"it is a symbolic link to {path.readlink()}, which does not exist"
        raise error(f"{path}: cannot be read: {why}") from None
    if is_too_large or len(data) > largest_bytes:
        raise error(f"{path}: is too large for a {noun}: more than {largest_bytes >> 20} MiB")
    return data


def write_atomically(path: Path, data: bytes, *, error: type[PowerInferError]) -> Path:
    """Write a file atomically, see `replacing`, and return its path; creates folders.

    Raises:
        PowerInferError: as `error`: it cannot be written, or the path is not a regular file (a
            device would be replaced).
    """
    make_folder_of(path, error=error)
    with replacing(path, error=error) as file:
        file.write(data)
    return path


def decimal_bytes(count: float) -> str:
    """Format the size of a file in powers of 1000, as shops and speeds have them: MB or GB."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def format_bytes(count: float) -> str:
    """Format a size in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"
