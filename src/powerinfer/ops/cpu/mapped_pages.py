"""Pages of a mapped file: copies in anonymous memory, and their release."""

import contextlib
import mmap

import numpy as np

from powerinfer.values import ByteArray

__all__ = ["copy_to_huge_pages", "release_pages"]


def copy_to_huge_pages(data: ByteArray) -> ByteArray:
    """Copy u8[n] into anonymous memory, in huge pages if the system has them.

    A page of a mapped file is 4 KiB, so that each row gathered from a matrix would cost a walk of
    the page table.
    """
    memory = mmap.mmap(-1, max(1, data.nbytes))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses; the copy is still correct.
        with contextlib.suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    copy: ByteArray = np.frombuffer(memory, np.uint8, data.nbytes)
    copy[:] = data.reshape(-1)
    return copy


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
    """Find the read-only mapping that an array is a view of, if any."""
    owner: object = data
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return owner if isinstance(owner, mmap.mmap) and memoryview(owner).readonly else None
