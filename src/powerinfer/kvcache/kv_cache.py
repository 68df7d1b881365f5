"""The KV cache: keys, values and states of all layers, and who shares them.

Sequences with a common beginning share blocks and begin with the same state. Holders of a block are
sequences, and the prefix tree (`powerinfer.kvcache.prefix_tree`), which keeps blocks of finished
sequences until their space is needed.
"""

import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from powerinfer.errors import PowerInferError, PromptError
from powerinfer.kvcache.block_counts import BlockKeeper
from powerinfer.kvcache.sequence_room import SequenceRoom
from powerinfer.ops.backend import KVLayer
from powerinfer.ops.protocol import KVType

__all__ = ["BLOCK_SIZE", "KVCache"]

# At 7B width a block of 64 positions is 512 KiB of f16 keys per layer: large enough that a table
# look-up per block costs nothing, small enough that a short chat wastes little.
BLOCK_SIZE = 64


@dataclass(slots=True, eq=False, kw_only=True)
class KVCache(SequenceRoom):
    """Keys, values and states of all layers, and the holders of each block and slot.

    Compared by identity: backends record steps on a cache.

    Attributes:
        layers: one handle per layer, made by the backend.
        bytes_per_position: bytes of keys and values of one position in all layers.
    """

    layers: list[KVLayer]
    kv_type: KVType
    bytes_per_position: int

    def fork(
        self,
        parent: Hashable,
        child: Hashable,
        num_positions: int,
        *,
        state_of: Hashable | None = None,
    ) -> None:
        """Start a sequence without blocks with the first `num_positions` of another, see `share`.

        Args:
            state_of: who holds the state after `num_positions`; None: the parent.

        Raises:
            PowerInferError: `child` has blocks, or `parent` has too few, or the state is not there.
            PromptError: no block is left for the copy, or no room for another state.
        """
        held = self.blocks_of(parent)
        needed = self.num_blocks_for(num_positions)
        if needed > len(held):
            raise PowerInferError(
                f"cannot share {num_positions} positions of a sequence of {len(held)} blocks"
            )
        holder = parent if state_of is None else state_of
        slot = None if self.states is None else self.states.source(holder, num_positions)
        self.share(child, held[:needed], num_positions, slot)

    def share(
        self,
        sequence: Hashable,
        blocks: Sequence[int],
        num_positions: int,
        slot: int | None = None,
    ) -> None:
        """Start a sequence without blocks with the first `num_positions` of some blocks.

        Args:
            blocks: held blocks, as many as the positions need.
            num_positions: if it ends within the last block, the sequence gets a copy of that one:
                later steps then never need more blocks than the sequence has positions.
            slot: the state after `num_positions`; None for models without state.

        Raises:
            PowerInferError: the sequence has blocks already, or one of `blocks` is free.
            PromptError: no block is left for the copy, unused blocks are promised to others, or
                there is no room for another state; the sequence then has none.
        """
        with self.changing():
            table = self._table(sequence)
            if table.num_blocks or not all(self._counts.num_holders[block] for block in blocks):
                raise PowerInferError("only a sequence without blocks can share, and not free ones")
            num_unused, room = sum(map(self.is_unused, blocks)), self._room_of(table)
            if num_unused > room:
                raise self._full(num_unused, room)
            if self.states is not None:
                self.states.begin(sequence, slot, num_positions)
            self._tables[sequence] = table
            for block in blocks:
                self._hold(block)
                table.add(block)
            num_whole = num_positions // self.block_size * self.block_size
            try:
                self._allocated(sequence, num_positions, num_whole)
            except PromptError:
                self._truncate(table, 0)
                if self.states is not None:
                    self.states.free(sequence)
                raise

    def replace(self, sequence: Hashable, index: int, block: int) -> None:
        """Replace a block of a sequence by another one with the same keys and values."""
        table = self._tables[sequence]
        with self.changing():
            self._hold(block)
            own, table.blocks[index] = int(table.blocks[index]), block
            self._release(own)

    def hold_state(self, holder: Hashable, sequence: Hashable, num_positions: int) -> None:
        """Let `holder` hold just the state that another sequence has after `num_positions`.

        Raises:
            PowerInferError: that sequence does not hold it.
            PromptError: there is no room for another state.
        """
        if self.states is not None:
            self.states.fork(sequence, holder, num_positions)

    # The keeper.

    def set_keeper(self, keeper: BlockKeeper) -> None:
        """Make `keeper`, held by a weak reference, the one to ask when no block is free.

        Blocks of a previous keeper are released.
        """
        with self.changing():
            self._drop_all()
            self._keeper = weakref.ref(keeper)

    def keep(self, block: int) -> None:
        """Count the keeper as a holder; only within `changing`.

        Raises:
            PowerInferError: nobody else holds the block, or the keeper does already.
        """
        counts = self._counts
        if not counts.num_holders[block] or block in counts.kept:
            raise PowerInferError(f"block {block} cannot be kept")
        counts.num_holders[block] += 1
        counts.kept.add(block)

    def check_integrity(self) -> None:
        """Raise PowerInferError if a block is lost or its holders are miscounted, by a bug."""
        with self.changing():
            found, right = self._counts, self._recounted(self._counts.kept)
            if replace(found, free=sorted(found.free)) != right:
                raise PowerInferError(
                    "KV cache blocks are lost or counted wrongly: "
                    f"{self.num_blocks - len(right.free)} held, {len(found.free)} free, "
                    f"{found.num_unused} unused, {self.num_blocks} in all"
                )

    def _hold(self, block: int) -> None:
        self._counts.num_unused -= self.is_unused(block)
        self._counts.num_holders[block] += 1
