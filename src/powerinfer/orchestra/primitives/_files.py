"""Files that the user allows: found by what a query calls them, opened without following links."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from powerinfer.orchestra.primitives.primitive import PrimitiveError

__all__ = ["check_regular", "find_allowed", "read_text"]

LARGEST = 4 << 20
"""Bytes of a document."""

_NOT_TEXT = "is not text in UTF-8"


def find_allowed(name: str, allowed: Sequence[Path], noun: str) -> tuple[Path, tuple[str, ...]]:
    """Find what a name means: an allowed file, or one in an allowed folder.

    Args:
        name: an allowed path, the last part of one, or a path below an allowed folder.
        allowed: paths that the user allows.
        noun: "document" or "database", for messages.

    Returns:
        The allowed path, and the parts below it.

    Raises:
        PrimitiveError: it is none of them, or has `..` in it.
    """
    if not allowed:
        raise PrimitiveError(f"no {noun} is allowed; the user gives the paths of {noun}s")
    parts = Path(name).parts
    if ".." in parts or "\0" in name:
        raise PrimitiveError(f"not a path that is allowed: {name[:80]!r}")
    for path in allowed:
        if name in (str(path), path.name):
            return path, ()
    for folder in filter(Path.is_dir, allowed):
        below = Path(name)
        if below.is_absolute() and below.is_relative_to(folder):
            return folder, below.relative_to(folder).parts
        if not below.is_absolute() and os.path.lexists(folder / below):
            return folder, parts
    listed = ", ".join(path.name for path in allowed)[:200]
    raise PrimitiveError(f"no {noun} {name[:80]!r} is allowed; there are {listed}")


def read_text(path: Path, below: Sequence[str]) -> str:
    """Read a text file below an allowed path; the user's own path may be a link, no other.

    Raises:
        PrimitiveError: it is no regular file, is not text, is too large, or cannot be read.
    """
    shown = "/".join((path.name, *below))
    try:
        file = _open(path, below)
    except OSError as error:
        raise PrimitiveError(f"{shown} cannot be read: {error.strerror}") from None
    with os.fdopen(file, "rb") as opened:
        size = os.fstat(file).st_size
        # A file of /proc has size 0 and any length.
        data = b"" if size > LARGEST else opened.read(LARGEST + 1)
    if size > LARGEST or len(data) > LARGEST:
        raise PrimitiveError(f"{shown} has more than {LARGEST >> 20} MiB")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise PrimitiveError(f"{shown} {_NOT_TEXT}") from None
    if "\0" in text:
        raise PrimitiveError(f"{shown} {_NOT_TEXT}")
    return text


def _open(path: Path, below: Sequence[str]) -> int:
    """Open a regular file, step by step, so that no part below the path is a link."""
    if not below:
        return _open_file(str(path.resolve(strict=True)), None)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in below[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            os.close(folder)
            folder = inner
        return _open_file(below[-1], folder)
    finally:
        os.close(folder)


def _open_file(name: str, folder: int | None) -> int:
    # Opening a device or a pipe can wait or have effects: look first, and look again at what came.
    found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    check_regular(found.st_mode)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    file = os.open(name, flags, dir_fd=folder)
    try:
        check_regular(os.fstat(file).st_mode)
    except OSError:
        os.close(file)
        raise
    return file


def check_regular(mode: int) -> None:
    """Raise OSError if a mode, as `os.stat` gives it, is that of a folder, device or pipe."""
    if not stat.S_ISREG(mode):
        raise OSError(0, "it is not a regular file")
