"""The KV cache: fixed-size blocks handed to sequences as they grow.

Each sequence has a table of block numbers; blocks are the same in every layer. The lowest free
block is handed out first, and backends do not touch a block before it is written, so the memory
in use follows the tokens held and not the size asked for.
"""

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import numpy as np

from powerinfer.errors import PowerInferError, PromptError, UnsupportedError
from powerinfer.models.config import ModelConfig
from powerinfer.ops.protocol import KVType
from powerinfer.ops.some_backend import KVLayer, SomeOps
from powerinfer.quant import get_format
from powerinfer.values import Batch, IntArray

__all__ = ["BLOCK_SIZE", "KVCache", "kv_bytes_per_position"]

# At 7B width a block of 64 positions is 512 KiB of f16 keys per layer: large enough that a table
# look-up per block costs nothing, small enough that a short chat wastes little.
BLOCK_SIZE = 64


def kv_bytes_per_position(config: ModelConfig, kv_type: KVType) -> int:
    """Bytes that one position takes in all layers, keys and values.

    Raises:
        UnsupportedError: head_dim is not a multiple of the Q8_0 block.
    """
    known = get_format(kv_type.value)
    if config.head_dim % known.block_size:
        raise UnsupportedError(
            f"a KV cache of type {kv_type} needs heads whose width is a multiple of "
            f"{known.block_size}; this model's are {config.head_dim} wide: use f16"
        )
    row = known.num_bytes(config.head_dim)
    return 2 * config.num_layers * config.num_kv_heads * row


@dataclass(slots=True)
class _Table:
    """Blocks of one sequence; `blocks` has room to grow, unused entries are -1."""

    blocks: IntArray
    num_blocks: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class KVCache:
    """Keys and values of all layers, and who owns which block.

    Compared and kept in weak references by identity: backends record steps on a cache.

    Sequences are known by keys of the caller's choice. The cache keeps them: a key that refers to
    the cache would keep its memory in use after everybody has dropped it.

    Attributes:
        layers: one handle per layer, made by the backend.
        num_blocks: blocks there are.
        block_size: positions in a block.
        kv_type: element type.
        bytes_per_position: keys and values of one position in all layers.
    """

    layers: list[KVLayer]
    num_blocks: int
    block_size: int
    kv_type: KVType
    bytes_per_position: int
    _free: list[int] = field(repr=False)
    _tables: dict[Hashable, _Table] = field(default_factory=dict, repr=False)

    @classmethod
    def create(
        cls,
        ops: SomeOps,
        config: ModelConfig,
        num_positions: int,
        *,
        kv_type: KVType = KVType.F16,
        block_size: int = BLOCK_SIZE,
    ) -> "KVCache":
        """Make room for `num_positions` positions in all, rounded up to whole blocks.

        Raises:
            UnsupportedError: head_dim is not a multiple of the Q8_0 block.
        """
        bytes_per_position = kv_bytes_per_position(config, kv_type)
        num_blocks = max(1, -(-num_positions // block_size))
        sizes = num_blocks, block_size, config.num_kv_heads, config.head_dim
        return cls(
            layers=ops.new_kv_layers(config.num_layers, *sizes, kv_type),
            num_blocks=num_blocks,
            block_size=block_size,
            kv_type=kv_type,
            bytes_per_position=bytes_per_position,
            _free=list(range(num_blocks)),
        )

    @property
    def num_free_blocks(self) -> int:
        """Blocks no sequence owns."""
        return len(self._free)

    def can_hold(self, num_positions: int) -> bool:
        """Whether a new sequence of this length would fit now."""
        return -(-num_positions // self.block_size) <= len(self._free)

    def allocate(self, sequence: Hashable, num_positions: int) -> IntArray:
        """Give `sequence` blocks for positions [0, num_positions); keeps what it has.

        Returns:
            i32[blocks of the sequence], a view that stays valid until the next call for it.

        Raises:
            PromptError: too few free blocks; nothing was allocated.
        """
        table = self._tables.setdefault(sequence, _Table(np.full(4, -1, np.int32)))
        needed = -(-num_positions // self.block_size)
        missing = needed - table.num_blocks
        if missing > len(self._free):
            raise PromptError(
                f"the KV cache is full: {missing * self.block_size} more positions needed, "
                f"{len(self._free) * self.block_size} of {self.num_blocks * self.block_size} are "
                "free",
                remedy="use a larger context ({context_length}) or fewer sequences",
            )
        if missing > 0:
            table.blocks = _grown(table.blocks, needed)
            for index in range(table.num_blocks, needed):
                table.blocks[index] = heapq.heappop(self._free)
            table.num_blocks = needed
        return table.blocks[: table.num_blocks]

    def truncate(self, sequence: Hashable, num_positions: int) -> None:
        """Return the blocks of `sequence` that lie wholly behind its first `num_positions`."""
        table = self._tables.get(sequence)
        if table is None:
            return
        kept = min(table.num_blocks, -(-num_positions // self.block_size))
        for index in range(kept, table.num_blocks):
            heapq.heappush(self._free, int(table.blocks[index]))
        table.blocks[kept:] = -1
        table.num_blocks = kept

    def free(self, sequence: Hashable) -> None:
        """Return every block of `sequence`; unknown sequences hold none."""
        self.truncate(sequence, 0)
        self._tables.pop(sequence, None)

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
            self.allocate(sequence, start + len(token_ids)) for sequence, token_ids, start in parts
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
        """Check that every block is free or owned by exactly one sequence.

        Raises:
            PowerInferError: a block is lost or owned twice: a bug in the caller or here.
        """
        owned = [
            int(block)
            for table in self._tables.values()
            for block in table.blocks[: table.num_blocks]
        ]
        if sorted(owned + self._free) != list(range(self.num_blocks)):
            raise PowerInferError(
                f"KV cache blocks are lost or shared: {len(owned)} owned, {len(self._free)} free, "
                f"{self.num_blocks} in all"
            )


def _grown(blocks: IntArray, needed: int) -> IntArray:
    """Double the room of a table until `needed` entries fit."""
    if needed <= len(blocks):
        return blocks
    room = len(blocks)
    while room < needed:
        room *= 2
    return np.concatenate([blocks, np.full(room - len(blocks), -1, np.int32)])
