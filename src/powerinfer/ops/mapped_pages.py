"""Giving back the pages of a mapped file whose weights were copied into a faster layout."""

import mmap
from typing import Any

import numpy as np

from powerinfer.values import ByteArray

__all__ = ["release_pages"]


def release_pages(data: ByteArray) -> None:
    """Drop the pages of a mapped file that lie wholly inside `data`; reading maps them again.

    Does nothing for data that is not a view of a mapping: dropping anonymous pages would zero them.
    """
    mapping = _mapping_of(data)
    if mapping is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = data.ctypes.data - np.frombuffer(mapping, np.uint8, 1).ctypes.data
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)


def _mapping_of(data: ByteArray) -> mmap.mmap | None:
    """The read-only mapping that an array is a view of, or None."""
    owner: Any = data
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    is_file = isinstance(owner, mmap.mmap) and memoryview(owner).readonly
    return owner if is_file else None
