"""torch's allocator of device memory, simulated: what tensors really take, without a device.

Rules and constants of c10/cuda/CUDACachingAllocator.cpp (torch 2.6 to 2.13, defaults).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["MIB", "CachingAllocator", "watched"]

MIB = 1 << 20
_SMALL, _SMALL_SEGMENT = MIB, 2 * MIB
_LARGE, _LARGE_SEGMENT, _ROUND_LARGE = 10 * MIB, 20 * MIB, 2 * MIB
_SMALLEST = 512


@dataclass(eq=False, slots=True)
class _Block:
    """Part of a segment."""

    segment: int
    first: int
    size: int
    is_free: bool = True


@dataclass(slots=True)
class CachingAllocator:
    """One stream's share of the memory.

    Attributes:
        reserved: bytes taken from the driver, which are not given back.
        requested: bytes of what was asked for and not freed.
        most_requested: the most of these at one time.
    """

    reserved: int = 0
    requested: int = 0
    most_requested: int = 0
    _segments: list[list[_Block]] = field(default_factory=list)
    _sizes: dict[int, int] = field(default_factory=dict)
    _blocks: dict[int, _Block] = field(default_factory=dict)
    _next: int = 0

    def allocate(self, num_bytes: int) -> int:
        """Take memory; returns a number to free it by."""
        size = max(_SMALLEST, -(-num_bytes // _SMALLEST) * _SMALLEST)
        is_small = size <= _SMALL
        free = [
            block
            for segment in self._segments
            if (sum(part.size for part in segment) == _SMALL_SEGMENT) == is_small
            for block in segment
            if block.is_free and block.size >= size
        ]
        block = min(free, key=lambda found: found.size) if free else self._new_segment(size)
        left = block.size - size
        if left >= _SMALLEST if is_small else left > _SMALL:
            segment = self._segments[block.segment]
            rest = _Block(block.segment, block.first + size, left)
            segment.insert(segment.index(block) + 1, rest)
            block.size = size
        block.is_free = False
        self._next += 1
        self._blocks[self._next], self._sizes[self._next] = block, num_bytes
        self.requested += num_bytes
        self.most_requested = max(self.most_requested, self.requested)
        return self._next

    def free(self, number: int) -> None:
        """Give memory back to the cache; free neighbours join."""
        block = self._blocks.pop(number)
        self.requested -= self._sizes.pop(number)
        block.is_free = True
        segment = self._segments[block.segment]
        joined: list[_Block] = []
        for part in segment:
            if joined and joined[-1].is_free and part.is_free:
                joined[-1].size += part.size
            else:
                joined.append(part)
        segment[:] = joined

    def allocate_all(self, sizes: Sequence[int]) -> int:
        """Take several pieces and keep them; returns bytes reserved then."""
        for size in sizes:
            self.allocate(size)
        return self.reserved

    def _new_segment(self, size: int) -> _Block:
        if size <= _SMALL:
            taken = _SMALL_SEGMENT
        elif size < _LARGE:
            taken = _LARGE_SEGMENT
        else:
            taken = -(-size // _ROUND_LARGE) * _ROUND_LARGE
        self.reserved += taken
        block = _Block(len(self._segments), 0, taken)
        self._segments.append([block])
        return block


class _Watch(TorchDispatchMode):
    """Passes on which storages tensors of one device take and give back."""

    def __init__(self, allocator: CachingAllocator, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._allocator, self._device = allocator, device
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {_key(tensor) for tensor in _tensors((args, kwargs))}
        found = func(*args, **(kwargs or {}))
        self.sweep()
        for tensor in _tensors(found):
            key = _key(tensor)
            if tensor.device.type == self._device and key not in given | set(self._alive):
                storage = tensor.untyped_storage()
                number = self._allocator.allocate(storage.nbytes())
                self._alive[key] = StorageWeakRef(storage), number
        return found

    def sweep(self) -> None:
        """Free what nobody refers to any more."""
        for key, (storage, number) in list(self._alive.items()):
            if storage.expired():
                self._allocator.free(number)
                del self._alive[key]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key


@contextmanager
def watched(allocator: CachingAllocator, device: str) -> Iterator[None]:
    """Have an allocator follow what the body's operations take and free on a torch device."""
    watch = _Watch(allocator, device)
    with watch:
        yield
    watch.sweep()
