"""The KV cache: fixed-size blocks handed to sequences as they grow.

Each sequence has a table of block numbers; blocks are the same in every layer. The lowest free
block is handed out first, and backends do not touch a block before it is written, so the memory
in use follows the tokens held and not the size asked for.

Sequences that begin alike share blocks. A block counts who holds it: sequences, and the prefix tree
(`powerinfer.kvcache.prefix_tree`), which keeps blocks that no sequence holds any more until their
room is needed. A step never writes into a block that somebody else holds: its sequence gets a copy
before.

Ctrl-C may come between any two lines. The tables of sequences and the keeper's list say who holds
what, and change by one assignment; all counts follow from them, and are counted anew by the next
call after one that was interrupted.
"""

import heapq
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from powerinfer.errors import PowerInferError, PromptError
from powerinfer.ops.protocol import KVType
from powerinfer.ops.some_backend import KVLayer
from powerinfer.values import Batch, IntArray

__all__ = ["BLOCK_SIZE", "BlockKeeper", "BlockPool", "KVCache"]


# At 7B width a block of 64 positions is 512 KiB of f16 keys per layer: large enough that a table
# look-up per block costs nothing, small enough that a short chat wastes little.
BLOCK_SIZE = 64


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


@dataclass(slots=True)
class _Table:
    """Blocks of one sequence.

    Attributes:
        blocks: i32[room to grow]; unused entries are -1.
        num_blocks: that it holds.
        num_reserved: that it may come to hold whoever else wants some.
        num_to_share: of those the ones that others will share with it.
    """

    blocks: IntArray = field(default_factory=lambda: np.full(4, -1, np.int32))
    num_blocks: int = 0
    num_reserved: int = 0
    num_to_share: int = 0

    @property
    def held(self) -> IntArray:
        return self.blocks[: self.num_blocks]

    @property
    def num_promised(self) -> int:
        return max(0, self.num_reserved - max(self.num_blocks, self.num_to_share))

    def add(self, block: int) -> None:
        if self.num_blocks == len(self.blocks):
            self.blocks = np.concatenate([self.blocks, np.full_like(self.blocks, -1)])
        self.blocks[self.num_blocks] = block
        self.num_blocks += 1


def _copy_nothing(pairs: Sequence[tuple[int, int]]) -> None:
    """A cache without layers."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class KVCache:
    """Keys and values of all layers, and who holds which block.

    Compared and kept in weak references by identity: backends record steps on a cache.

    Sequences are known by keys of the caller's choice. The cache keeps them: a key that refers to
    the cache would keep its memory in use after everybody has dropped it.

    Attributes:
        layers: one handle per layer, made by the backend.
        num_blocks: blocks there are.
        block_size: positions in a block.
        kv_type: element type.
        bytes_per_position: keys and values of one position in all layers.
        copy_blocks: copies keys and values of (source, target) blocks in all layers.
        pool: counts of holders; only within `changing`.
    """

    layers: list[KVLayer]
    num_blocks: int
    block_size: int
    kv_type: KVType
    bytes_per_position: int
    copy_blocks: Callable[[Sequence[tuple[int, int]]], None] = field(
        default=_copy_nothing, repr=False
    )
    _tables: dict[Hashable, _Table] = field(default_factory=dict, repr=False)
    pool: BlockPool = field(init=False, repr=False)
    _is_torn: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks)

    # What there is room for.

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody holds."""
        return self.pool.num_free

    @property
    def num_unused_blocks(self) -> int:
        """Blocks that only the prefix tree holds: it gives them back when they are needed."""
        return self.pool.num_unused

    @property
    def num_available_blocks(self) -> int:
        """Blocks that a new sequence can have: free or unused, and not promised to others."""
        promised = sum(table.num_promised for table in self._tables.values())
        return self.num_free_blocks + self.num_unused_blocks - promised

    @property
    def num_used_blocks(self) -> int:
        """Blocks that sequences hold, each counted once."""
        return self.num_blocks - self.num_free_blocks - self.num_unused_blocks

    def num_blocks_for(self, num_positions: int) -> int:
        """Blocks that hold so many positions."""
        return -(-num_positions // self.block_size)

    def can_hold(self, num_positions: int) -> bool:
        """Whether a new sequence of this length would fit now."""
        return self.num_blocks_for(num_positions) <= self.num_available_blocks

    def is_unused(self, block: int) -> bool:
        """Whether only the prefix tree holds a block."""
        return self.pool.is_unused(block)

    # What sequences hold.

    def blocks_of(self, sequence: Hashable) -> list[int]:
        """Blocks of a sequence, in the order of their positions; unknown sequences have none."""
        table = self._tables.get(sequence)
        return [] if table is None else [int(block) for block in table.held]

    def num_reserved(self, sequence: Hashable) -> int:
        """Blocks that a sequence has or was promised."""
        table = self._tables.get(sequence)
        return 0 if table is None else max(table.num_blocks, table.num_reserved)

    def reserve(self, sequence: Hashable, num_positions: int, num_to_share: int = 0) -> None:
        """Promise `sequence` the blocks that it lacks for `num_positions` positions in all.

        Others cannot have them until it is freed. A smaller number takes a promise back.

        Args:
            sequence: its key.
            num_positions: most that it will hold.
            num_to_share: positions at its beginning that it will get by `fork`.

        Raises:
            PromptError: there are not enough; nothing was promised.
        """
        table = self._table(sequence)
        wanted = _Table(table.blocks, table.num_blocks, self.num_blocks_for(num_positions))
        wanted.num_to_share = num_to_share // self.block_size
        room = self._room_of(table)
        if wanted.num_promised > room:
            raise self._full(wanted.num_promised, room)
        self._tables[sequence] = wanted

    def allocate(self, sequence: Hashable, num_positions: int, first: int = 0) -> IntArray:
        """Give `sequence` blocks for positions [0, num_positions); keeps what it has.

        Blocks of positions [first, num_positions), which are to be written, become its own: those
        that others hold, too, are replaced by copies.

        Returns:
            i32[blocks of the sequence], a view that stays valid until the next call for it.

        Raises:
            PromptError: too few free blocks; nothing was allocated.
        """
        with self.changing():
            return self._allocated(sequence, num_positions, first)

    def _allocated(self, sequence: Hashable, num_positions: int, first: int) -> IntArray:
        table, pool = self._table(sequence), self.pool
        needed = self.num_blocks_for(num_positions)
        written = range(first // self.block_size, min(needed, table.num_blocks))
        shared = [index for index in written if pool.num_holders[table.blocks[index]] > 1]
        # What only the prefix tree holds besides can be taken from it, so it needs no room.
        num_kept = sum(pool.is_shared_with_keeper_alone(int(table.blocks[i])) for i in shared)
        wanted, room = max(0, needed - table.num_blocks) + len(shared), self._room_of(table)
        if wanted - num_kept > room:
            raise self._full(wanted - num_kept, room)
        self._tables[sequence] = table
        for index in shared:
            self._make_own(table, index, may_copy=wanted <= room)
        while table.num_blocks < needed:
            table.add(pool.take())
        return table.held

    def fork(self, parent: Hashable, child: Hashable, num_positions: int) -> None:
        """Let a sequence without blocks begin with the first `num_positions` of another.

        It shares their blocks, and gets a copy of a last one that is partly used.

        Raises:
            PowerInferError: `child` has blocks, or `parent` has too few.
            PromptError: there is no block for the copy.
        """
        held = self.blocks_of(parent)
        needed = self.num_blocks_for(num_positions)
        if needed > len(held):
            raise PowerInferError(
                f"a sequence of {len(held)} blocks has no {num_positions} positions to share"
            )
        self.share(child, held[:needed], num_positions)

    def share(self, sequence: Hashable, blocks: Sequence[int], num_positions: int) -> None:
        """Let a sequence without blocks begin with the first `num_positions` of some blocks.

        Args:
            sequence: its key.
            blocks: that somebody holds, as many as the positions need.
            num_positions: if the last block is only partly among them, the sequence gets a copy of
                it: so later steps never need more blocks than its positions.

        Raises:
            PowerInferError: it has blocks already, or nobody holds one of them.
            PromptError: there is no block for the copy, or those that nobody uses are promised to
                others; it has none then.
        """
        with self.changing():
            table = self._table(sequence)
            if table.num_blocks or not all(self.pool.num_holders[block] for block in blocks):
                raise PowerInferError(
                    "a sequence without blocks can share blocks that somebody holds"
                )
            num_unused, room = sum(map(self.is_unused, blocks)), self._room_of(table)
            if num_unused > room:
                raise self._full(num_unused, room)
            self._tables[sequence] = table
            for block in blocks:
                self.pool.hold(block)
                table.add(block)
            num_whole = num_positions // self.block_size * self.block_size
            try:
                self._allocated(sequence, num_positions, num_whole)
            except PromptError:
                self._truncate(table, 0)
                raise

    def replace(self, sequence: Hashable, index: int, block: int) -> None:
        """Have a sequence hold another block with the same keys and values instead of its own."""
        table = self._tables[sequence]
        with self.changing():
            self.pool.hold(block)
            own, table.blocks[index] = int(table.blocks[index]), block
            self.pool.release(own)

    def truncate(self, sequence: Hashable, num_positions: int) -> None:
        """Return the blocks of `sequence` that lie wholly behind its first `num_positions`."""
        table = self._tables.get(sequence)
        if table is not None:
            with self.changing():
                self._truncate(table, self.num_blocks_for(num_positions))

    def free(self, sequence: Hashable) -> None:
        """Return every block of `sequence`, and what it was promised; unknown ones hold none."""
        self.truncate(sequence, 0)
        self._tables.pop(sequence, None)

    # What the prefix tree holds.

    def set_keeper(self, keeper: BlockKeeper) -> None:
        """Ask `keeper` for blocks when none is free; it is kept by a weak reference.

        What another one kept before goes.
        """
        self.pool.set_keeper(keeper)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Where counts change; may not be entered within itself.

        Only errors of the project are raised when nothing is half done.
        """
        if self._is_torn:
            self.pool.recount(self._held())
        self._is_torn = True
        try:
            yield
        except PowerInferError:
            self._is_torn = False
            raise
        self._is_torn = False

    # Steps.

    def batch(
        self,
        parts: Sequence[tuple[Hashable, Sequence[int] | IntArray, int]],
        are_prompts: Sequence[bool],
    ) -> Batch:
        """Allocate for one step and describe it.

        Args:
            parts: per sequence its key, the new token ids and the position of the first of them.
                A sequence appears once. Parts of one kind belong next to each other: operations
                read the weights anew where prompt and generated tokens meet.
            are_prompts: of each part whether its tokens are prompt, see `Batch.is_prompt`.

        Raises:
            PromptError: too few free blocks.
        """
        tables = [
            self.allocate(sequence, start + len(token_ids), start)
            for sequence, token_ids, start in parts
        ]
        lengths = [len(token_ids) for _, token_ids, _ in parts]
        block_tables = np.full((len(parts), max(map(len, tables))), -1, np.int32)
        for row, table in zip(block_tables, tables, strict=True):
            row[: len(table)] = table
        return Batch(
            token_ids=np.concatenate([np.asarray(ids, np.int32) for _, ids, _ in parts]),
            positions=np.concatenate(
                [np.arange(start, start + len(ids), dtype=np.int32) for _, ids, start in parts]
            ),
            sequences=np.repeat(np.arange(len(parts), dtype=np.int32), lengths),
            block_tables=block_tables,
            is_prompt=np.repeat(are_prompts, lengths) if any(are_prompts) else None,
        )

    def check_integrity(self) -> None:
        """Check that each block is free, or held by as many as it counts.

        Raises:
            PowerInferError: a block is lost or its count is wrong: a bug in the caller or here.
        """
        with self.changing():
            self.pool.check(self._held())

    # Within.

    def _held(self) -> list[int]:
        """Blocks of all sequences, each as often as sequences hold it."""
        return [int(block) for table in list(self._tables.values()) for block in table.held]

    def _truncate(self, table: _Table, num_blocks: int) -> None:
        dropped = table.held[num_blocks:].tolist()
        table.num_blocks -= len(dropped)
        for block in dropped:
            self.pool.release(block)

    def _table(self, sequence: Hashable) -> _Table:
        """That of a sequence; a new one is not yet known."""
        return self._tables.get(sequence) or _Table()

    def _room_of(self, table: _Table) -> int:
        """Blocks that this sequence can have: what is available and what it was promised."""
        return self.num_available_blocks + table.num_promised

    def _full(self, missing: int, room: int) -> PromptError:
        size = self.block_size
        return PromptError(
            f"the KV cache is full: {missing * size} more positions needed, "
            f"{max(0, room) * size} of {self.num_blocks * size} are free",
            remedy="use a larger context ({context_length}) or fewer sequences",
        )

    def _make_own(self, table: _Table, index: int, *, may_copy: bool) -> None:
        """Replace a block that others hold by a copy, or take it from the tree."""
        block, pool = int(table.blocks[index]), self.pool
        if not may_copy and pool.is_shared_with_keeper_alone(block):
            pool.forget(block)
            return
        own = pool.take()
        self.copy_blocks([(block, own)])
        table.blocks[index] = own
        pool.release(block)
