"""Dense operations on one torch device: norms, products, rotary attention over a paged cache.

Knows no plan and no CPU half: `powerinfer.ops.hybrid` decides what runs here. Activations are f32
tensors [num_tokens, columns]. Steps of up to 8 tokens never wait for the device and do the same
launches whatever the numbers are, so that they can be recorded in a CUDA graph.

Without a GPU, numpy interprets the kernels and would warn about results of damaged weights; hence
`ignore_float_errors`.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.gpu import linear
from powerinfer.ops.gpu.cache import DeviceBatch, DeviceKV
from powerinfer.ops.gpu.devices import open_device
from powerinfer.ops.gpu.kernels import MAX_TOKENS, handover, norm
from powerinfer.ops.gpu.kernels.attention import attend_few
from powerinfer.ops.gpu.kernels.attention_many import attend_many
from powerinfer.ops.gpu.kernels.attention_tiles import Softmax
from powerinfer.ops.gpu.kernels.rope import Angles, rope_and_store
from powerinfer.ops.gpu.linear import DeviceLinear
from powerinfer.ops.gpu.matrix import DeviceMatrix, upload_matrix
from powerinfer.ops.gpu.memory import Arena, DeviceMemory, naming_exhaustion
from powerinfer.ops.operands import HeadNorms, KVType, RopeTable
from powerinfer.values import Batch, ByteArray, IntArray

__all__ = ["DeviceBatch", "DeviceKV", "TorchGPU"]

# Tiles of queries pay off if several tokens of a sequence share what a tile loads.
_MIN_TOKENS_PER_SEQUENCE = 4


class TorchGPU(DeviceMemory):
    """Operations on a torch device; `powerinfer.ops.protocol.Ops` describes them.

    Attributes:
        has_packed: products have packed weights, so norms and attention round their results too.
            To be set before the first step, since a norm that rounds may add up in another order.
    """

    def __init__(self, device: str = "cuda") -> None:
        """Open `cuda`, `cuda:N` (which becomes torch's current device) or `cpu`."""
        super().__init__(open_device(device))
        # Tables by identity: a table is kept here, so its identity is not given to another.
        self._angles: dict[int, tuple[RopeTable, Angles]] = {}
        self._table_width = 1
        self._last: DeviceBatch | None = None
        self.has_packed = False

    def upload_matrix(self, encoded: ByteArray, format_name: str, columns: int) -> DeviceMatrix:
        """Copy an encoded matrix u8[rows, row_bytes]; see `matrix.upload_matrix`."""
        with naming_exhaustion(f"a {format_name} matrix", int(encoded.nbytes)):
            return upload_matrix(encoded, format_name, columns, self.device)

    @ignore_float_errors
    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Compute x / sqrt(mean(x^2) + eps) * weight per row."""
        return norm.rms_norm(x, weight, eps, is_rounded=self.has_packed)

    @ignore_float_errors
    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Compute (x - mean) / sqrt(variance + eps) * weight + bias per row."""
        return norm.layer_norm(x, weight, bias, eps, is_rounded=self.has_packed)

    @ignore_float_errors
    def linear(self, x: Tensor, layers: Sequence[DeviceLinear]) -> list[Tensor]:
        """Multiply one input with several matrices, see `linear.linear`."""
        return linear.linear(x, layers)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Add y to x in place."""
        if len(x) <= MAX_TOKENS and x.is_contiguous() and y.is_contiguous():
            # Unlike torch's, this kernel starts before the one that wrote y has ended.
            handover.add_to(x, y)
        else:
            x.add_(y)

    def take_rows(self, x: Tensor, rows: IntArray) -> Tensor:
        """Gather rows of a tensor, in the order of `rows`."""
        return x.index_select(0, self.to_device(np.asarray(rows, np.int32)))

    def split_columns(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        """Split a tensor into views of consecutive columns: [num_tokens, size] each."""
        return list(x.split(list(sizes), dim=1))

    def new_kv_layers(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> list[DeviceKV]:
        """Allocate the uninitialised cache of some layers, in one arena; see `DeviceKV.cut`."""
        shape, counted = (num_blocks, block_size, num_kv_heads, head_dim), Arena.counting()
        DeviceKV.cut(counted, shape, kv_type)
        num_bytes = num_layers * counted.used_bytes
        arena = Arena.allocate(self.device, num_bytes, "the KV cache", is_zero=False)
        self._table_width = max(self._table_width, num_blocks)
        return [DeviceKV.cut(arena, shape, kv_type) for _ in range(num_layers)]

    def copy_kv_blocks(self, layers: Sequence[DeviceKV], pairs: Sequence[tuple[int, int]]) -> None:
        """Queue the copies in place, so that records keep their addresses."""
        arrays = [array for layer in layers for array in layer.arrays if array.numel()]
        for source, target in pairs:
            if min(source, target) < 0:
                raise IndexError(f"there is no block {min(source, target)}")
            for array in arrays:
                array[target].copy_(array[source], non_blocking=True)

    @ignore_float_errors
    def rope_and_store(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: DeviceKV,
        batch: Batch | DeviceBatch,
        table: RopeTable | None,
        head_norms: HeadNorms[Tensor] | None = None,
    ) -> None:
        """Normalise and rotate q and k in place, and store k and v; rows are contiguous."""
        placed = self.device_batch(batch)
        placed.require_blocks(cache.block_size)
        rope_and_store(q, k, v, cache, placed, self._uploaded_angles(table), head_norms)

    @ignore_float_errors
    def attention(
        self,
        q: Tensor,
        cache: DeviceKV,
        batch: Batch | DeviceBatch,
        scale: float,
        window: int | None = None,
        *,
        sinks: Tensor | None = None,
        soft_cap: float | None = None,
    ) -> Tensor:
        """Compute causal grouped-query attention over the cache."""
        placed, softmax = self.device_batch(batch), Softmax(scale, window, sinks, soft_cap)
        num_tokens = placed.num_tokens
        is_long = num_tokens >= _MIN_TOKENS_PER_SEQUENCE * len(placed.block_tables)
        if num_tokens > MAX_TOKENS and is_long:
            return attend_many(q, cache, placed, softmax)
        is_rounded = self.has_packed and num_tokens <= MAX_TOKENS
        return attend_few(q, cache, placed, softmax, is_rounded=is_rounded)

    def device_batch(self, batch: Batch | DeviceBatch) -> DeviceBatch:
        """Copy a batch to the device; keeps the last one, since every layer asks for it."""
        if isinstance(batch, DeviceBatch):
            return batch
        if self._last is None or self._last.host is not batch:
            self._last = self.static_batch(batch)
            self._last.send()
        return self._last

    def static_batch(self, batch: Batch, num_columns: int = 0) -> DeviceBatch:
        """Allocate inputs for records, with `num_columns` of x; `fill` and `send` replace them.

        Since sequences may grow, its tables have room for all blocks of the largest cache so far.
        """
        width = max(self._table_width, batch.block_tables.shape[1])
        # Not `self`, which keeps the last batch: the two would form a cycle.
        return DeviceBatch(DeviceMemory(self.device), batch, width, num_columns)

    def keep_angles(self, table: RopeTable, cos: Tensor, sin: Tensor) -> None:
        """Use these copies on the device for the angles of a table from now on."""
        self._angles[id(table)] = (table, (cos, sin, table.is_interleaved))

    def _uploaded_angles(self, table: RopeTable | None) -> Angles | None:
        if table is None or not table.rotary_dim:
            return None
        if id(table) not in self._angles:
            self.keep_angles(table, self.to_device(table.cos), self.to_device(table.sin))
        return self._angles[id(table)][1]
