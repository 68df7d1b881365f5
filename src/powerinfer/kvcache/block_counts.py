"""Holders of each KV block, counted: what follows from the tables of sequences and the keeper."""

import heapq
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

import numpy as np

from powerinfer.errors import PowerInferError
from powerinfer.values import IntArray

__all__ = ["BlockCounts", "BlockKeeper", "BlockTable"]


class BlockKeeper(Protocol):
    """Keeps blocks that no sequence holds, and gives them back on request."""

    @property
    def blocks(self) -> Collection[int]:
        """Blocks it keeps."""
        ...

    def reclaim(self, num_blocks: int) -> None:
        """Drop up to `num_blocks` blocks that nobody else holds."""
        ...

    def forget(self, block: int) -> None:
        """Drop a block, and those that are useless without it."""
        ...


@dataclass(slots=True, eq=False)
class BlockTable:
    """Blocks of one sequence.

    Attributes:
        blocks: i32[capacity]; unused entries are -1.
        num_reserved: blocks it is guaranteed to get, including those it has.
    """

    blocks: IntArray = field(default_factory=lambda: np.full(4, -1, np.int32))
    num_blocks: int = 0
    num_reserved: int = 0

    @property
    def held(self) -> IntArray:
        """The blocks in position order, a view."""
        return self.blocks[: self.num_blocks]

    @property
    def num_promised(self) -> int:
        """Number of blocks it is still to get."""
        return max(0, self.num_reserved - self.num_blocks)

    def add(self, block: int) -> None:
        """Append a block."""
        if self.num_blocks == len(self.blocks):
            self.blocks = np.concatenate([self.blocks, np.full_like(self.blocks, -1)])
        self.blocks[self.num_blocks] = block
        self.num_blocks += 1


@dataclass(slots=True)
class BlockCounts:
    """Counts of holders: sequences and the keeper.

    Attributes:
        num_holders: holders of each block; 0 for a free one.
        free: the free blocks, as a heap.
        kept: blocks that the keeper holds.
        num_unused: number of blocks that only the keeper holds.
    """

    num_holders: list[int]
    free: list[int]
    kept: set[int]
    num_unused: int

    @classmethod
    def counted(cls, num_blocks: int, tables: Iterable[BlockTable], kept: Collection[int]) -> Self:
        """Count the holders of all blocks."""
        counts = [0] * num_blocks
        for block in kept:
            counts[block] += 1
        for table in tables:
            for block in table.held:
                counts[block] += 1
        free = [block for block, count in enumerate(counts) if not count]
        return cls(counts, free, set(kept), sum(counts[block] == 1 for block in kept))

    def is_unused(self, block: int) -> bool:
        """Return whether only the keeper holds the block."""
        return self.num_holders[block] == 1 and block in self.kept

    def is_shared_with_keeper_alone(self, block: int) -> bool:
        """Return whether the keeper and one sequence hold the block."""
        return self.num_holders[block] == 2 and block in self.kept

    def take(self) -> int:
        """Return the lowest free block, with one holder.

        Raises:
            PowerInferError: all are in use.
        """
        if not self.free:
            raise PowerInferError("every KV block is in use")
        block = heapq.heappop(self.free)
        self.num_holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Count one more sequence."""
        self.num_unused -= self.is_unused(block)
        self.num_holders[block] += 1

    def release(self, block: int) -> None:
        """Count one holder less."""
        self.num_holders[block] -= 1
        if self.is_unused(block):
            self.num_unused += 1
        elif not self.num_holders[block]:
            heapq.heappush(self.free, block)

    def keep(self, block: int) -> None:
        """Count the keeper.

        Raises:
            PowerInferError: nobody else holds the block, or the keeper does already.
        """
        if not self.num_holders[block] or block in self.kept:
            raise PowerInferError(f"block {block} cannot be kept")
        self.num_holders[block] += 1
        self.kept.add(block)

    def drop(self, block: int) -> None:
        """Stop counting the keeper."""
        self.num_unused -= self.is_unused(block)
        self.kept.remove(block)
        self.release(block)
