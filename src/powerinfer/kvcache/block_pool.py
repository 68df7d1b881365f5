"""Numbers of KV blocks, and how many hold each."""

import heapq
import weakref
from collections.abc import Collection, Sequence
from typing import Protocol

from powerinfer.errors import PowerInferError

__all__ = ["BlockKeeper", "BlockPool"]


class BlockKeeper(Protocol):
    """Keeps blocks that no sequence holds, and gives them back."""

    @property
    def blocks(self) -> Collection[int]:
        """Those it keeps."""
        ...

    def reclaim(self, num_blocks: int) -> None:
        """Drop so many of the blocks that nobody else holds, if there are."""
        ...

    def forget(self, block: int) -> None:
        """Drop a block, and those that are of no use without it."""
        ...


class BlockPool:
    """Counts who holds which block: sequences, and one keeper.

    Attributes:
        num_holders: of each block; 0: it is free.
        num_unused: blocks that the keeper holds and nobody else.
    """

    def __init__(self, num_blocks: int) -> None:
        """All blocks are free."""
        self.num_holders = [0] * num_blocks
        self.num_unused = 0
        self._free = list(range(num_blocks))
        self._kept: set[int] = set()
        # The prefix tree refers to the cache: a cycle would keep the memory of both.
        self._keeper: weakref.ref[BlockKeeper] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def is_unused(self, block: int) -> bool:
        """Whether only the keeper holds it."""
        return self.num_holders[block] == 1 and block in self._kept

    def is_shared_with_keeper_alone(self, block: int) -> bool:
        """Whether one sequence and the keeper hold it."""
        return self.num_holders[block] == 2 and block in self._kept

    def take(self) -> int:
        """The lowest free block, from now on held by one; the keeper gives one if none is free.

        Raises:
            PowerInferError: all are in use.
        """
        if not self._free:
            self._reclaim()
        if not self._free:
            raise PowerInferError("every KV block is in use")
        block = heapq.heappop(self._free)
        self.num_holders[block] = 1
        return block

    def hold(self, block: int) -> None:
        """Count one more who holds it."""
        self.num_unused -= self.is_unused(block)
        self.num_holders[block] += 1

    def release(self, block: int) -> None:
        """Count one less; what nobody holds is free."""
        self.num_holders[block] -= 1
        if self.is_unused(block):
            self.num_unused += 1
        elif not self.num_holders[block]:
            heapq.heappush(self._free, block)

    # The keeper.

    def set_keeper(self, keeper: BlockKeeper) -> None:
        """Ask this one for blocks; what another kept before goes."""
        self._drop_all()
        self._keeper = weakref.ref(keeper)

    def keep(self, block: int) -> None:
        """Count the keeper, too, who holds a block once.

        Raises:
            PowerInferError: nobody else holds it, or the keeper does already.
        """
        if not self.num_holders[block] or block in self._kept:
            raise PowerInferError(f"block {block} cannot be kept")
        self.num_holders[block] += 1
        self._kept.add(block)

    def drop(self, block: int) -> None:
        """Count the keeper no more."""
        self.num_unused -= self.is_unused(block)
        self._kept.remove(block)
        self.release(block)

    def forget(self, block: int) -> None:
        """Have the keeper drop a block."""
        keeper = None if self._keeper is None else self._keeper()
        if keeper is None:
            self._drop_all()
        else:
            keeper.forget(block)

    def _reclaim(self) -> None:
        keeper = None if self._keeper is None else self._keeper()
        if keeper is None:
            self._drop_all()
        else:
            keeper.reclaim(1)

    def _drop_all(self) -> None:
        """What a keeper held that is gone."""
        for block in sorted(self._kept):
            self.drop(block)

    def recount(self, held: Sequence[int]) -> None:
        """Count anew who holds what, where a change was interrupted.

        Args:
            held: blocks of all sequences, each as often as sequences hold it.
        """
        keeper = None if self._keeper is None else self._keeper()
        kept = set(() if keeper is None else keeper.blocks)
        counts = [0] * len(self.num_holders)
        for block in (*kept, *held):
            counts[block] += 1
        self.num_holders, self._kept = counts, kept
        self.num_unused = sum(counts[block] == 1 for block in kept)
        self._free = [block for block, count in enumerate(counts) if not count]

    def check(self, held: Sequence[int]) -> None:
        """Check all counts.

        Args:
            held: blocks of all sequences, each as often as sequences hold it.

        Raises:
            PowerInferError: one is lost or counted wrongly.
        """
        counts = [0] * len(self.num_holders)
        for block in [*self._kept, *held]:
            counts[block] += 1
        free = [block for block, count in enumerate(counts) if not count]
        num_unused = sum(counts[block] == 1 for block in self._kept)
        if (counts, free, num_unused) != (
            self.num_holders,
            sorted(self._free),
            self.num_unused,
        ):
            raise PowerInferError(
                f"KV cache blocks are lost or counted wrongly: {len(counts) - len(free)} held, "
                f"{len(self._free)} free, {self.num_unused} unused, {len(counts)} in all"
            )
