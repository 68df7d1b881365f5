"""Layers that the plan leaves to the CPU, computed by the GPU for prompts.

A prompt reads each weight once for all of its tokens, so that sending it takes less time than the
CPU's products. Matrices pass through the two buffers of a `ChunkStream`, in the format of placed
ones. The CPU's cache gets the keys and values, for later steps; the GPU keeps them for its own
attention in this step. If a text of a step has earlier tokens, the CPU computes attention.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import NumericsError, OutOfDeviceMemoryError
from powerinfer.ops.cpu.handles import (
    NativeFFN,
    NativeKV,
    NativeLinear,
    NativeMatrix,
    NativePredictor,
    NativeVector,
)
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.cache import DeviceKV
from powerinfer.ops.gpu.ffn import activated, add_rows
from powerinfer.ops.gpu.kernels.prompts import select_values
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.gpu.memory import naming_exhaustion
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Chunk, ChunkStream
from powerinfer.ops.hybrid.step_graphs import StepGraphs
from powerinfer.ops.hybrid.upload import Uploads
from powerinfer.ops.protocol import FFNCounters, HeadNorms, KVType, Linear, RopeTable
from powerinfer.values import Batch

__all__ = ["StreamedLayers"]

_log = logging.getLogger(__name__)

# Positions of a block of the device's keys and values.
_BLOCK_SIZE = 64


class StreamedLayers:
    """Operations on the GPU with weights of the CPU, see `powerinfer.ops.protocol.Ops`."""

    def __init__(
        self,
        cpu: NativeOps,
        gpu: TorchGPU,
        uploads: Uploads,
        stream: ChunkStream,
        graphs: StepGraphs,
        *,
        crossover: int,
    ) -> None:
        """Take both devices; the GPU computes steps of `crossover` tokens and more.

        `graphs` knows whether a placement is on trial.
        """
        self._cpu, self._gpu, self._uploads, self._stream = cpu, gpu, uploads, stream
        self._graphs, self._crossover = graphs, crossover
        self._has_failed = False
        # Counts of the current attempt; one that fails is repeated by the CPU, which counts then.
        self._counts = FFNCounters()
        self._chunks: dict[NativeMatrix, list[Chunk[DeviceMatrix]]] = {}
        # The order of matrices is that of the last time.
        self._followers: dict[NativeMatrix, NativeMatrix] = {}
        self._last: NativeMatrix | None = None
        self._kv_type = KVType.F16
        self._kv: DeviceKV | None = None
        self._no_queries = np.empty((0, 0), np.float32)
        # The last batch, and the same in blocks of `_kv`.
        self._batches: tuple[Batch, Batch] | None = None

    def takes(self, num_tokens: int) -> bool:
        """Test whether the GPU computes this number of tokens."""
        return num_tokens >= self._crossover and not self._has_failed

    @contextmanager
    def trying(self, kv_type: KVType) -> Iterator[None]:
        """Open the context of a run of layers, whose caches have this type.

        If memory runs out, or a weight exceeds f16, the context ends without an error, and the CPU
        has to run the layers, now and later.

        Raises:
            OutOfDeviceMemoryError: memory ran out on trial, so that less must be placed.
        """
        self._last, self._kv_type = None, kv_type
        try:
            with self._attempting():
                yield
        finally:
            self._stream.stop()
            self._kv = None

    def handed(self, x: Tensor, ffn: NativeFFN, scored: Tensor) -> Tensor | None:
        """Compute a block of a layer that is on the GPU; None if that failed, now and later."""
        with self._attempting():
            return self.ffn(x, ffn, scored)
        return None

    @contextmanager
    def _attempting(self) -> Iterator[None]:
        self._counts = FFNCounters()
        try:
            with naming_exhaustion("a layer of the CPU", self._stream.buffer_bytes):
                yield
            self._cpu.counters.add(self._counts)
        except BaseException as error:
            # A chunk sent early may lie in the other buffer than the stream assumes.
            self._stream.stop()
            if isinstance(error, OutOfDeviceMemoryError) and not self._graphs.is_on_trial:
                cause = str(error)
            elif isinstance(error, NumericsError):
                # Its advice, to keep the matrix in f32, is none for a user.
                cause = "a weight is beyond the largest f16, which the GPU would get"
            else:
                raise
            self._has_failed = True
            _log.warning("the CPU computes prompts of its layers, which is slower: %s", cause)

    def vector(self, vector: NativeVector) -> Tensor:
        """Send a norm weight or bias."""
        return self._gpu.to_device(self._cpu.vector_values(vector))

    def linear(self, x: Tensor, layers: Sequence[NativeLinear]) -> list[Tensor]:
        """Multiply one input with several matrices."""
        return [self._product(x, layer) for layer in layers]

    def ffn(self, x: Tensor, ffn: NativeFFN, scored: Tensor) -> Tensor:
        """Compute a block; `scored` is the input of its predictor."""
        mask = None if ffn.predictor is None else self._passed(scored, ffn.predictor)
        gate = None if ffn.gate is None else self._product(x, ffn.gate)
        values = activated(ffn.activation, gate, self._product(x, ffn.up))
        del gate
        if mask is not None:
            select_values(values, None, mask, None)
        self._count(values, ffn, mask)
        if not ffn.is_down_transposed:
            return self._product(values, ffn.down)
        y, first = torch.zeros_like(x), 0
        for rows in self._sent(ffn.down.matrix):
            add_rows(y, values[:, first : first + rows.rows].contiguous(), rows)
            first += rows.rows
        return y if ffn.down.bias is None else y.add_(self.vector(ffn.down.bias))

    def rope_and_store(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: NativeKV,
        batch: Batch,
        rope: RopeTable | None,
        head_norms: HeadNorms[NativeVector] | None,
    ) -> None:
        """Rotate, and store on both devices."""
        keys, values = self._gpu.to_host(k), self._gpu.to_host(v)
        own = self._in_own_blocks(batch)
        if self._kv is None:
            sizes = 1 + int(own.block_tables.max()), _BLOCK_SIZE, cache.num_kv_heads, cache.head_dim
            (self._kv,) = self._gpu.new_kv_layers(1, *sizes, self._kv_type)
        sent = None if head_norms is None else head_norms.map(self.vector)
        self._gpu.rope_and_store(q, k, v, self._kv, own, rope, sent)
        if self._no_queries.shape != keys.shape:
            self._no_queries = np.zeros_like(keys)
        # The CPU takes queries too, but needs none.
        on_host = self._no_queries, keys, values
        self._cpu.rope_and_store(*on_host, cache, batch, rope, head_norms)

    def attention(
        self,
        q: Tensor,
        cache: NativeKV,
        batch: Batch,
        scale: float,
        window: int | None,
        *,
        sinks: NativeVector | None,
        soft_cap: float | None,
    ) -> Tensor:
        """Compute attention, on the CPU if it needs keys of earlier steps."""
        is_whole = np.count_nonzero(batch.positions == 0) == len(np.unique(batch.sequences))
        if is_whole and self._kv is not None:
            on_device = q, self._kv, self._in_own_blocks(batch), scale, window
            sent = None if sinks is None else self.vector(sinks)
            return self._gpu.attention(*on_device, sinks=sent, soft_cap=soft_cap)
        on_host = self._gpu.to_host(q), cache, batch, scale, window
        return self._gpu.to_device(self._cpu.attention(*on_host, sinks=sinks, soft_cap=soft_cap))

    def _in_own_blocks(self, batch: Batch) -> Batch:
        """Number blocks of `_BLOCK_SIZE` positions that hold tokens of the batch."""
        if self._batches is None or self._batches[0] is not batch:
            used = np.stack([batch.sequences, batch.positions // _BLOCK_SIZE])
            rows, blocks = np.unique(used, axis=1)
            tables = np.full((len(batch.block_tables), 1 + blocks.max()), -1, np.int32)
            tables[rows, blocks] = np.arange(len(rows))
            self._batches = batch, replace(batch, block_tables=tables)
        return self._batches[1]

    def _product(self, x: Tensor, layer: NativeLinear) -> Tensor:
        parts = (self._gpu.linear(x, [Linear(rows)])[0] for rows in self._sent(layer.matrix))
        y, num_rows = next(parts), self._cpu.matrix_shape(layer.matrix)[0]
        first = y.shape[1]
        if first < num_rows:
            part, y = y, y.new_empty((len(x), num_rows))
            y[:, :first] = part
            for part in parts:
                y[:, first : first + part.shape[1]] = part
                first += part.shape[1]
        return y if layer.bias is None else y.add_(self.vector(layer.bias))

    def _passed(self, x: Tensor, predictor: NativePredictor) -> Tensor:
        """Select neurons as `ffn.predict` does: u8[num_tokens, num_neurons]."""
        inputs = x if predictor.center is None else x - self.vector(predictor.center)
        if predictor.fc1 is not None:
            inputs = self._product(inputs, Linear(predictor.fc1)).relu_()
        # NaN is not below the threshold.
        is_stopped = [
            self._product(inputs, Linear(stage.matrix, stage.bias)) < stage.threshold
            for stage in predictor.stages
        ]
        return torch.stack(is_stopped).any(dim=0).logical_not_().view(torch.uint8)

    def _count(self, values: Tensor, ffn: NativeFFN, mask: Tensor | None) -> None:
        """Count as the CPU does."""
        counts, total = self._counts, values.numel()
        is_skipping = ffn.is_exact_sparse or mask is not None
        counts.total += total
        counts.predicted += total if mask is None else int(mask.count_nonzero())
        counts.active += int(values.count_nonzero()) if is_skipping else total
        parts = [part.matrix for part in (ffn.gate, ffn.up, ffn.down) if part is not None]
        counts.bytes_read += sum(map(self._cpu.matrix_bytes, parts))
        if ffn.predictor is not None:
            rows = [stage.matrix for stage in ffn.predictor.stages]
            rows += [] if ffn.predictor.fc1 is None else [ffn.predictor.fc1]
            num_bytes = sum(map(self._cpu.matrix_bytes, rows))
            counts.bytes_read += num_bytes
            counts.predictor_bytes += num_bytes

    def _sent(self, matrix: NativeMatrix) -> Iterator[DeviceMatrix]:
        """Yield pieces of rows on the device."""
        if self._last is not None:
            self._followers[self._last] = matrix
        self._last, follower = matrix, self._followers.get(matrix)
        then = None if follower is None else self._pieces(follower)[0]
        return self._stream.each(self._pieces(matrix), then)

    def _pieces(self, matrix: NativeMatrix) -> list[Chunk[DeviceMatrix]]:
        if matrix not in self._chunks:
            self._chunks[matrix] = self._uploads.chunks(matrix, self._stream.buffer_bytes)
        return self._chunks[matrix]
