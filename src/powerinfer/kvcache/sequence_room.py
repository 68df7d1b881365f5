"""What sequences hold: blocks of keys and values as they grow, and slots of recurrent state.

Each sequence has a table of block numbers; blocks are the same in every layer. The lowest free
block is handed out first, and backends do not touch a block before it is written, so memory use
follows the number of tokens and not the size of the cache.

A block may have several holders, which are counted (`powerinfer.kvcache.kv_cache`). A step never
writes into a shared block: its sequence gets a copy first.

Models with recurrent layers also need a state per sequence (`powerinfer.kvcache.state_slots`). A
sequence can only go on at a position whose state it holds.

Ctrl-C may come between any two lines. The tables of the sequences and the keeper's list are the
source of truth, and each changes by one assignment. All counts follow from them; after an
interrupted call, the next one recounts.
"""

import heapq
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from powerinfer.errors import PowerInferError, PromptError
from powerinfer.kvcache.block_counts import BlockCounts, BlockKeeper
from powerinfer.kvcache.state_slots import StateSlots
from powerinfer.values import Batch, IntArray

__all__ = ["SequenceRoom", "StepPart"]

StepPart: TypeAlias = tuple[Hashable, Sequence[int] | IntArray, int]
"""What a step computes of a sequence: its key, new token ids and position of the first of them."""


@dataclass(slots=True, eq=False)
class _Table:
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
        return self.blocks[: self.num_blocks]

    @property
    def num_promised(self) -> int:
        return max(0, self.num_reserved - self.num_blocks)

    def add(self, block: int) -> None:
        if self.num_blocks == len(self.blocks):
            self.blocks = np.concatenate([self.blocks, np.full_like(self.blocks, -1)])
        self.blocks[self.num_blocks] = block
        self.num_blocks += 1


@dataclass(slots=True, eq=False, weakref_slot=True)
class SequenceRoom:
    """Blocks and slots of state: how many there are, and what each sequence holds and is promised.

    Callers choose the keys of sequences, which are stored here. A key that refers to the cache
    would keep its memory alive.

    Attributes:
        copy_blocks: copies keys and values of (source, target) blocks in all layers.
        states: slots of the recurrent layers; None if there are none.
    """

    num_blocks: int
    block_size: int
    copy_blocks: Callable[[Sequence[tuple[int, int]]], None] = field(
        default=lambda _pairs: None, repr=False
    )
    states: StateSlots | None = None
    _tables: dict[Hashable, _Table] = field(default_factory=dict, init=False, repr=False)
    # Changes within `changing` only.
    _counts: BlockCounts = field(init=False, repr=False)
    # A weak reference: the prefix tree refers to the cache, and a cycle would keep the memory of
    # both alive.
    _keeper: Callable[[], BlockKeeper | None] = field(default=lambda: None, init=False, repr=False)
    _is_torn: bool = field(default=False, init=False, repr=False)
    # Changes so far, and the block tables of the last step: their sequences, and the changes then.
    _num_changes: int = field(default=0, init=False, repr=False)
    _last: tuple[list[_Table], int, IntArray] = field(
        default=([], 0, np.empty((0, 0), np.int32)), init=False, repr=False
    )

    def __post_init__(self) -> None:
        self._counts = BlockCounts.counted(self.num_blocks, (), ())

    # Free space.

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that nobody holds."""
        return len(self._counts.free)

    @property
    def num_unused_blocks(self) -> int:
        """Number of blocks that only the keeper holds; it gives them back when they are needed."""
        return self._counts.num_unused

    @property
    def num_available_blocks(self) -> int:
        """Number of blocks a new sequence can have: free or unused, and not promised to others."""
        promised = sum(table.num_promised for table in self._tables.values())
        return self.num_free_blocks + self.num_unused_blocks - promised

    @property
    def num_used_blocks(self) -> int:
        """Number of blocks that sequences hold, each counted once."""
        return self.num_blocks - self.num_free_blocks - self.num_unused_blocks

    def num_blocks_for(self, num_positions: int) -> int:
        """Return the number of blocks for `num_positions`."""
        return -(-num_positions // self.block_size)

    def is_unused(self, block: int) -> bool:
        """Return whether only the keeper holds the block."""
        counts = self._counts
        return counts.num_holders[block] == 1 and block in counts.kept

    # Sequences.

    def blocks_of(self, sequence: Hashable) -> list[int]:
        """Return the blocks of a sequence in position order; an unknown sequence has none."""
        table = self._tables.get(sequence)
        return [] if table is None else [int(block) for block in table.held]

    def reserve(self, sequence: Hashable, num_positions: int) -> None:
        """Promise `sequence` all blocks it will need for `num_positions` positions, and its state.

        Others cannot have them until it is freed. A smaller number releases part of the promise.

        Raises:
            PromptError: not enough blocks, or too many states; nothing was promised.
        """
        table = self._table(sequence)
        wanted = _Table(table.blocks, table.num_blocks, self.num_blocks_for(num_positions))
        room = self._room_of(table)
        if wanted.num_promised > room:
            raise self._full(wanted.num_promised, room)
        if self.states is not None:
            self.states.reserve(sequence)
        self._tables[sequence] = wanted

    def allocate(self, sequence: Hashable, num_positions: int, first: int = 0) -> IntArray:
        """Give `sequence` blocks for positions [0, num_positions); it keeps those it has.

        Positions [first, num_positions) will be written: shared blocks among them are replaced by
        copies.

        Returns:
            i32[num_blocks], a view that stays valid until the next call for this sequence.

        Raises:
            PromptError: too few free blocks; nothing was allocated.
        """
        table = self._tables.get(sequence)
        if table is None or not self._may_write(table, num_positions, first):
            with self.changing():
                table = self._allocated(sequence, num_positions, first)
        return table.held

    def _may_write(self, table: _Table, num_positions: int, first: int) -> bool:
        """Test whether a sequence has its blocks, and those to be written for itself alone."""
        needed = self.num_blocks_for(num_positions)
        written, num_holders = range(first // self.block_size, needed), self._counts.num_holders
        return (
            needed <= table.num_blocks
            and not self._is_torn
            and all(num_holders[table.blocks[index]] == 1 for index in written)
        )

    def _allocated(self, sequence: Hashable, num_positions: int, first: int) -> _Table:
        table, counts = self._table(sequence), self._counts
        needed = self.num_blocks_for(num_positions)
        written = range(first // self.block_size, min(needed, table.num_blocks))
        shared = [index for index in written if counts.num_holders[table.blocks[index]] > 1]
        # A block shared with the keeper alone can be taken from it, so it needs no room.
        num_kept = sum(self._is_shared_with_keeper_alone(int(table.blocks[i])) for i in shared)
        wanted, room = max(0, needed - table.num_blocks) + len(shared), self._room_of(table)
        if wanted - num_kept > room:
            raise self._full(wanted - num_kept, room)
        self._tables[sequence] = table
        for index in shared:
            self._make_own(table, index, may_copy=wanted <= room)
        while table.num_blocks < needed:
            table.add(self._take())
        return table

    def can_resume(self, sequence: Hashable, num_positions: int) -> bool:
        """Return whether a sequence can be truncated to `num_positions` and go on there."""
        if self.states is None or not num_positions:
            return True
        return self.states.slot_of(sequence, num_positions) is not None

    def resumable(self, sequence: Hashable, num_positions: int) -> int:
        """Return the most positions, up to `num_positions`, at which a sequence can go on.

        Fewer only in models with state, after a step whose last tokens were not kept.
        """
        return num_positions if self.states is None else self.states.last(sequence, num_positions)

    def truncate(self, sequence: Hashable, num_positions: int) -> None:
        """Release blocks and states of `sequence` after those of its first `num_positions`."""
        if self.states is not None:
            self.states.truncate(sequence, num_positions)
        table = self._tables.get(sequence)
        if table is not None:
            with self.changing():
                self._truncate(table, self.num_blocks_for(num_positions))

    def shrink(self, sequence: Hashable, num_positions: int) -> None:
        """Release all of a sequence but the blocks of `num_positions`: states and promises too."""
        self.truncate(sequence, num_positions)
        table = self._table(sequence)
        self._tables[sequence] = _Table(table.blocks, table.num_blocks, table.num_blocks)
        if self.states is not None:
            self.states.free(sequence)

    def free(self, sequence: Hashable) -> None:
        """Release all blocks, states and promises of `sequence`, which may be unknown."""
        self.truncate(sequence, 0)
        self._tables.pop(sequence, None)
        if self.states is not None:
            self.states.free(sequence)

    # Changes.

    def drop(self, block: int) -> None:
        """Stop counting the keeper as a holder; only within `changing`."""
        self._counts.num_unused -= self.is_unused(block)
        self._counts.kept.remove(block)
        self._release(block)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Surround a change of counts; not reentrant.

        An error of the project must be raised only where the counts are consistent.
        """
        if self._is_torn:
            keeper = self._keeper()
            self._counts = self._recounted(() if keeper is None else keeper.blocks)
        self._is_torn = True
        self._num_changes += 1
        try:
            yield
        except PowerInferError:
            self._is_torn = False
            raise
        self._is_torn = False

    # Steps.

    def batch(
        self,
        parts: Sequence[StepPart],
        are_prompts: Sequence[bool],
    ) -> Batch:
        """Allocate blocks for one step and build its batch, whose block tables are read-only.

        Args:
            parts: key, new token ids and position of the first of them, once per sequence. Group
                parts of one kind: operations read the weights again where prompt and generated
                tokens meet.
            are_prompts: whether the tokens of each part are prompt, see `Batch.is_prompt`.

        Raises:
            PromptError: too few free blocks, or no room for another state.
            PowerInferError: a sequence does not hold its state at that position.
        """
        for sequence, token_ids, start in parts:
            self.allocate(sequence, start + len(token_ids), start)
        lengths = [len(token_ids) for _, token_ids, _ in parts]
        sources = targets = None
        if self.states is not None:
            ends = zip(parts, lengths, strict=True)
            sources, targets = self.states.assign([(s, at, at + n) for (s, _, at), n in ends])
        # Most steps have few tokens, and numpy joins few slower than it takes a list.
        positions = [start + n for _, token_ids, start in parts for n in range(len(token_ids))]
        sequences = [number for number, length in enumerate(lengths) for _ in range(length)]
        return Batch(
            token_ids=np.array([each for _, token_ids, _ in parts for each in token_ids], np.int32),
            positions=np.array(positions, np.int32),
            sequences=np.array(sequences, np.int32),
            block_tables=self._block_tables([sequence for sequence, _, _ in parts]),
            is_prompt=np.repeat(are_prompts, lengths) if any(are_prompts) else None,
            state_sources=sources,
            state_targets=targets,
        )

    def _block_tables(self, sequences: Sequence[Hashable]) -> IntArray:
        """Return the tables of some sequences, the array of the last step if they are the same."""
        tables = [self._tables[sequence] for sequence in sequences]
        known, num_changes, block_tables = self._last
        if tables != known or num_changes != self._num_changes:
            width = max(table.num_blocks for table in tables)
            block_tables = np.full((len(tables), width), -1, np.int32)
            for row, table in zip(block_tables, tables, strict=True):
                row[: table.num_blocks] = table.held
            block_tables.flags.writeable = False
            self._last = tables, self._num_changes, block_tables
        return block_tables

    # Counts, only within `changing`.

    def _recounted(self, kept: Collection[int]) -> BlockCounts:
        return BlockCounts.counted(
            self.num_blocks, [each.held for each in list(self._tables.values())], kept
        )

    def _is_shared_with_keeper_alone(self, block: int) -> bool:
        return self._counts.num_holders[block] == 2 and block in self._counts.kept

    def _take(self) -> int:
        """Return the lowest free block with one holder; ask the keeper if none is free.

        Raises:
            PowerInferError: all are in use.
        """
        if not self._counts.free:
            keeper = self._keeper()
            if keeper is None:
                self._drop_all()
            else:
                keeper.reclaim(1)
        if not self._counts.free:
            raise PowerInferError("every KV block is in use")
        block = heapq.heappop(self._counts.free)
        self._counts.num_holders[block] = 1
        return block

    def _release(self, block: int) -> None:
        self._counts.num_holders[block] -= 1
        if self.is_unused(block):
            self._counts.num_unused += 1
        elif not self._counts.num_holders[block]:
            heapq.heappush(self._counts.free, block)

    def _drop_all(self) -> None:
        """Release all blocks of a keeper that is gone."""
        for block in sorted(self._counts.kept):
            self.drop(block)

    def _truncate(self, table: _Table, num_blocks: int) -> None:
        dropped = table.held[num_blocks:].tolist()
        table.num_blocks -= len(dropped)
        for block in dropped:
            self._release(block)

    def _table(self, sequence: Hashable) -> _Table:
        """Return the table of a sequence; that of a new one is not stored yet."""
        return self._tables.get(sequence) or _Table()

    def _room_of(self, table: _Table) -> int:
        """Number of blocks this sequence can have: those available and those promised to it."""
        return self.num_available_blocks + table.num_promised

    def _full(self, missing: int, room: int) -> PromptError:
        size = self.block_size
        return PromptError(
            f"the KV cache is full: {missing * size} more positions needed, "
            f"{max(0, room) * size} of {self.num_blocks * size} are free",
            remedy="use a larger context ({context_length}) or fewer sequences",
        )

    def _make_own(self, table: _Table, index: int, *, may_copy: bool) -> None:
        """Replace a shared block by a copy, or take it from the keeper."""
        block = int(table.blocks[index])
        if not may_copy and self._is_shared_with_keeper_alone(block):
            keeper = self._keeper()
            if keeper is None:
                self._drop_all()
            else:
                keeper.forget(block)
            return
        own = self._take()
        self.copy_blocks([(block, own)])
        table.blocks[index] = own
        self._release(block)
