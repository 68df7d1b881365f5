"""Holders of each KV block, counted: what follows from the tables of sequences and the keeper."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol, Self

from powerinfer.values import IntArray

__all__ = ["BlockCounts", "BlockKeeper"]


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
    def counted(cls, num_blocks: int, tables: Iterable[IntArray], kept: Collection[int]) -> Self:
        """Count the holders of all blocks: tables of sequences, and the keeper with `kept`."""
        counts = [0] * num_blocks
        for block in kept:
            counts[block] += 1
        for table in tables:
            for block in table:
                counts[block] += 1
        free = [block for block, count in enumerate(counts) if not count]
        return cls(counts, free, set(kept), sum(counts[block] == 1 for block in kept))
