"""The batch of a step on the device: positions of tokens and blocks of their keys."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from powerinfer.errors import PowerInferError, ShapeError
from powerinfer.ops.gpu.kernels.attention_many import QUERY_TILE
from powerinfer.ops.gpu.memory import DeviceMemory
from powerinfer.values import Batch, BoolArray, IntArray

__all__ = ["BatchSizes", "DeviceBatch", "batch_sizes", "query_tiles"]

BatchSizes = tuple[int, int]
"""(num_tokens, num_sequences): with the width of the tables, they decide the shapes of a step."""


def batch_sizes(batch: Batch) -> BatchSizes:
    """Return the sizes of a batch."""
    return batch.num_tokens, len(batch.block_tables)


@dataclass(slots=True, eq=False)
class DeviceBatch:
    """A batch on the device, whose memory may be refilled with batches of the same sizes.

    Attributes:
        memory: transfers to the device.
        positions: i32[num_tokens].
        sequences: i32[num_tokens].
        block_tables: i32[num_sequences, width]; entries that no token reaches are 0.
        host: the batch it was filled from; None before.
        block_size: positions of a block, for checks of the tables; set by the first operation.
    """

    memory: DeviceMemory
    positions: Tensor
    sequences: Tensor
    block_tables: Tensor
    host: Batch | None = None
    block_size: int | None = None
    _numbers: Tensor = field(repr=False, kw_only=True)
    _staging: Tensor = field(repr=False, kw_only=True)
    # Passed when the staging memory may be written again; None where copies are immediate.
    _copied: torch.cuda.Event | None = field(repr=False, kw_only=True)
    _tiles: Tensor | None = field(default=None, repr=False)

    @classmethod
    def allocate(cls, memory: DeviceMemory, sizes: BatchSizes, width: int) -> "DeviceBatch":
        """Allocate room for batches of these sizes with tables of up to `width` entries."""
        num_tokens, num_sequences = sizes
        step = _aligned(num_tokens)
        length = 2 * step + num_sequences * width
        numbers = memory.to_device(np.zeros(length, np.int32))
        staging = memory.pinned((length,), numbers.dtype)
        return cls(
            memory,
            numbers[:num_tokens],
            numbers[step : step + num_tokens],
            numbers[2 * step :].view(num_sequences, width),
            _numbers=numbers,
            _staging=staging,
            _copied=torch.cuda.Event() if memory.is_cuda else None,
        )

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the step."""
        return int(self.positions.shape[0])

    @property
    def is_prompt(self) -> BoolArray | None:
        """Marks of prompt rows in host memory, for the CPU's part of the work."""
        return None if self.host is None else self.host.is_prompt

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arguments of kernels: positions, sequences and block tables."""
        return self.positions, self.sequences, self.block_tables

    @property
    def tiles(self) -> Tensor:
        """Tiles i32[num_tiles, QUERY_TILE], see `query_tiles`; made at the first use."""
        if self._tiles is None:
            if self.host is None:
                raise PowerInferError("a batch without tokens has no tiles; fill it first")
            self._tiles = self.memory.to_device(query_tiles(self.host))
        return self._tiles

    def fill(self, batch: Batch) -> None:
        """Copy a batch of the same sizes, without waiting for the device.

        Raises:
            ShapeError: its sizes differ or its tables are wider.
            PowerInferError: a token has no KV block.
        """
        num_tokens, (num_sequences, width) = self.num_tokens, tuple(self.block_tables.shape)
        used = batch.block_tables.shape[1]
        if batch_sizes(batch) != (num_tokens, num_sequences) or used > width:
            raise ShapeError(
                f"a batch of {batch_sizes(batch)} tokens and sequences with tables {used} wide "
                f"does not fit the record of {(num_tokens, num_sequences)} and {width}; make a "
                "new record"
            )
        if self.block_size is not None:
            _check_blocks(batch, self.block_size)
        if self._copied is not None:
            self._copied.synchronize()
        numbers = self._staging.numpy()
        step = _aligned(num_tokens)
        numbers[:num_tokens] = batch.positions
        numbers[step : step + num_tokens] = batch.sequences
        tables = numbers[2 * step :].reshape(num_sequences, width)
        tables[:, used:] = 0
        np.maximum(batch.block_tables, 0, out=tables[:, :used])
        self._numbers.copy_(self._staging, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self.host, self._tiles = batch, None

    def require_blocks(self, block_size: int) -> None:
        """Check once that every token of the batch has a KV block.

        Raises:
            PowerInferError: a token has no KV block.
        """
        if self.block_size != block_size:
            self.block_size = block_size
            if self.host is not None:
                _check_blocks(self.host, block_size)


def query_tiles(batch: Batch) -> npt.NDArray[np.int32]:
    """Group tokens by sequence and position: i32[num_tiles, QUERY_TILE], padded with -1."""
    order = np.lexsort((batch.positions, batch.sequences)).astype(np.int32)
    starts = np.flatnonzero(np.diff(batch.sequences[order])) + 1
    return np.concatenate([_tiled(rows) for rows in np.split(order, starts)])


def _aligned(length: int) -> int:
    """Round up to 16 bytes of i32: Triton recompiles a kernel for arrays of other alignment."""
    return -(-length // 4) * 4


def _tiled(rows: IntArray) -> IntArray:
    tiles = np.full((-(-len(rows) // QUERY_TILE), QUERY_TILE), -1, np.int32)
    tiles.reshape(-1)[: len(rows)] = rows
    return tiles


def _check_blocks(batch: Batch, block_size: int) -> None:
    blocks = batch.positions // block_size
    width = batch.block_tables.shape[1]
    found = batch.block_tables[batch.sequences, np.minimum(blocks, width - 1)]
    if ((found < 0) | (blocks >= width)).any():
        raise PowerInferError("a token of the batch has no KV block; allocate before the step")
