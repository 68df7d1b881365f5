"""The paged KV cache on the device, and the batch of a step: what attention reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from powerinfer.errors import PowerInferError, ShapeError, UnsupportedError
from powerinfer.ops.gpu.memory import Arena, DeviceMemory
from powerinfer.ops.operands import KVType
from powerinfer.values import Batch, BoolArray, FloatArray, IntArray

__all__ = ["QUERY_TILE", "DeviceBatch", "DeviceKV", "query_tiles"]

QUERY_TILE = 64
"""Tokens of one tile of a prompt: what one warp group multiplies at once."""

_SCALE_BLOCK = 32


@dataclass(frozen=True, slots=True)
class DeviceKV:
    """Keys and values of one layer; Q8_0 keeps codes and scales apart.

    Attributes:
        keys: f16 or i8[num_blocks, block_size, num_kv_heads, head_dim].
        key_scales: f16[num_blocks, block_size, num_kv_heads, head_dim / 32]; empty for f16.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor

    @classmethod
    def cut(cls, arena: Arena, shape: tuple[int, int, int, int], kv_type: KVType) -> "DeviceKV":
        """Cut an uninitialised cache out of an arena.

        `shape` is num_blocks, block_size, num_kv_heads, head_dim.

        Raises:
            UnsupportedError: q8_0 with heads that are not whole blocks.
        """
        *outer, head_dim = shape
        element = torch.float16
        scales: tuple[int, ...] = (0,)
        if kv_type is KVType.Q8_0:
            if head_dim % _SCALE_BLOCK:
                raise UnsupportedError(
                    f"a KV cache of type {kv_type} needs heads whose width is a multiple of "
                    f"{_SCALE_BLOCK}; these are {head_dim} wide: use f16"
                )
            element, scales = torch.int8, (*outer, head_dim // _SCALE_BLOCK)
        keys, values = arena.array(shape, element), arena.array(shape, element)
        return cls(
            keys, values, arena.array(scales, torch.float16), arena.array(scales, torch.float16)
        )

    @property
    def block_size(self) -> int:
        """Positions in one block."""
        return int(self.keys.shape[1])

    @property
    def num_kv_heads(self) -> int:
        """Heads of the keys."""
        return int(self.keys.shape[2])

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return int(self.keys.shape[3])

    @property
    def is_q8(self) -> bool:
        """True if the elements are codes with scales."""
        return self.keys.dtype == torch.int8

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of kernels: keys, values and their scales."""
        return self.keys, self.values, self.key_scales, self.value_scales


class DeviceBatch:
    """Inputs of a step on the device, in memory that may be refilled with those of the same sizes.

    Everything is in one array, so that it takes one copy.

    Attributes:
        x: f32[num_tokens, num_columns], the stream that enters the layers.
        positions: i32[num_tokens].
        sequences: i32[num_tokens].
        block_tables: i32[num_sequences, width]; entries that no token reaches are 0.
        host: the batch it was last filled from.
    """

    def __init__(
        self, memory: DeviceMemory, batch: Batch, width: int, num_columns: int = 0
    ) -> None:
        """Allocate room for such batches, with tables of up to `width` entries, and fill it."""
        self.host = batch
        self._memory = memory
        num_tokens, num_sequences = batch.num_tokens, len(batch.block_tables)
        self._sizes = num_tokens, num_sequences, width
        shapes = [(num_tokens, num_columns), (num_tokens,), (num_tokens,), (num_sequences, width)]
        length = sum(_aligned(math.prod(shape)) for shape in shapes)
        self._staging = memory.pinned((length,), torch.int32)
        self._numbers = torch.empty(length, dtype=torch.int32, device=memory.device)
        staged, placed = (_parts(numbers, shapes) for numbers in (self._staging, self._numbers))
        self.x, self.positions, self.sequences, self.block_tables = placed
        self._staged = [part.numpy() for part in staged]
        self._staged_tables: IntArray | None = None
        self._tiles: Tensor | None = None
        # Positions of a block, for checks of the tables; set by the first operation.
        self._block_size: int | None = None
        self.fill(batch)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the step."""
        return self._sizes[0]

    @property
    def is_prompt(self) -> BoolArray | None:
        """Marks of prompt rows in host memory, for the CPU's part of the work."""
        return self.host.is_prompt

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of kernels: positions, sequences and block tables."""
        return self.positions, self.sequences, self.block_tables

    @property
    def tiles(self) -> Tensor:
        """Tiles i32[num_tiles, QUERY_TILE], see `query_tiles`; made at the first use."""
        if self._tiles is None:
            self._tiles = self._memory.to_device(query_tiles(self.host))
        return self._tiles

    def fill(self, batch: Batch, x: FloatArray | None = None) -> None:
        """Write a batch of the same sizes to the memory that `send` copies to the device.

        Earlier copies must have arrived. Block tables are not written again while they are the same
        array.

        Raises:
            ShapeError: its sizes differ or its tables are wider.
            PowerInferError: a token has no KV block.
        """
        num_tokens, num_sequences, width = self._sizes
        found, used = (batch.num_tokens, len(batch.block_tables)), batch.block_tables.shape[1]
        if found != (num_tokens, num_sequences) or used > width:
            raise ShapeError(
                f"a batch of {found} tokens and sequences with tables {used} wide "
                f"does not fit the record of {(num_tokens, num_sequences)} and {width}; make a "
                "new record"
            )
        if self._block_size is not None:
            _check_blocks(batch, self._block_size)
        staged_x, positions, sequences, tables = self._staged
        if x is not None:
            staged_x[:] = x
        positions[:], sequences[:] = batch.positions, batch.sequences
        if batch.block_tables is not self._staged_tables:
            self._staged_tables = None
            tables[:, used:] = 0
            np.maximum(batch.block_tables, 0, out=tables[:, :used])
            self._staged_tables = batch.block_tables
        self.host, self._tiles = batch, None

    def send(self) -> None:
        """Queue the copy to the device; it can be recorded."""
        self._numbers.copy_(self._staging, non_blocking=True)

    def require_blocks(self, block_size: int) -> None:
        """Check once that every token of the batch has a KV block, or raise PowerInferError."""
        if self._block_size != block_size:
            self._block_size = block_size
            _check_blocks(self.host, block_size)


def _parts(numbers: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """View the inputs, of which the first is f32, among all numbers."""
    parts, first = [], 0
    for shape in shapes:
        length = math.prod(shape)
        parts.append(numbers[first : first + length].view(shape))
        first += _aligned(length)
    return [parts[0].view(torch.float32), *parts[1:]]


def query_tiles(batch: Batch) -> npt.NDArray[np.int32]:
    """Group tokens by sequence and position: i32[num_tiles, QUERY_TILE], padded with -1."""
    order = np.lexsort((batch.positions, batch.sequences)).astype(np.int32)
    starts = np.flatnonzero(np.diff(batch.sequences[order])) + 1
    padded = (
        np.pad(rows, (0, -len(rows) % QUERY_TILE), constant_values=-1)
        for rows in np.split(order, starts)
    )
    return np.concatenate(list(padded)).reshape(-1, QUERY_TILE)


def _aligned(length: int) -> int:
    """Round up to 16 bytes of i32: Triton recompiles a kernel for arrays of other alignment."""
    return -(-length // 4) * 4


def _check_blocks(batch: Batch, block_size: int) -> None:
    try:
        found = batch.block_tables[batch.sequences, batch.positions // block_size]
    except IndexError:
        found = np.array([-1])
    if (found < 0).any():
        raise PowerInferError("a token of the batch has no KV block; allocate before the step")
