"""Weights of the CPU that prompts send to the GPU: of whole layers, and of cold neurons.

A prompt reads each weight once for all of its tokens, so that sending it takes less time than the
CPU's products, unless the tokens are few. Matrices and chunks of neurons pass through the two
buffers of a `ChunkStream`, each while the GPU computes with the other. Results are those of the CPU
up to rounding.

Of layers that the plan leaves to the CPU, its cache gets the keys and values, for later steps; the
GPU keeps them for its own attention in this step. If a text of a step has earlier tokens, the CPU
computes attention.
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
from powerinfer.ops.gpu.cache import DeviceKV
from powerinfer.ops.gpu.ffn import HotNeurons, activated, add_rows, masked_ffn
from powerinfer.ops.gpu.formats import chunk_neurons
from powerinfer.ops.gpu.kernels.prompts import select_values
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.gpu.memory import naming_exhaustion
from powerinfer.ops.gpu.selection import Routing
from powerinfer.ops.gpu.uploads import Chunk, ChunkStream
from powerinfer.ops.hybrid.decode import Mask, SplitFFN
from powerinfer.ops.hybrid.migration import HybridSettings
from powerinfer.ops.hybrid.step_graphs import StepGraphs
from powerinfer.ops.hybrid.upload import Placer, Uploads
from powerinfer.ops.protocol import ActiveIds, FFNCounters, HeadNorms, KVType, Linear, RopeTable
from powerinfer.values import Batch, BoolArray, IntArray

__all__ = ["StreamedWeights"]

_log = logging.getLogger(__name__)

# Positions of a block of the device's keys and values.
_BLOCK_SIZE = 64


class StreamedWeights:
    """Operations on the GPU with weights of the CPU, see `powerinfer.ops.protocol.Ops`."""

    def __init__(
        self, uploads: Uploads, stream: ChunkStream, graphs: StepGraphs, settings: HybridSettings
    ) -> None:
        """Take what sends weights; `graphs` knows whether a placement is on trial."""
        self._cpu, self._gpu, self._uploads = uploads.cpu, uploads.gpu, uploads
        self._stream, self._graphs, self._settings = stream, graphs, settings
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

    def takes_layers(self, num_tokens: int) -> bool:
        """Test whether the GPU computes layers of the CPU for this number of tokens."""
        return num_tokens >= self._settings.stream_crossover and not self._has_failed

    def takes_neurons(self, num_tokens: int) -> bool:
        """Test whether the GPU computes the cold neurons of blocks for this number of tokens."""
        return num_tokens >= self._settings.prefill_crossover

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

    def split_ffn(
        self,
        x: Tensor,
        block: SplitFFN,
        mask: Mask,
        routing: Routing | None,
        is_prompt: BoolArray | None,
    ) -> Tensor:
        """Compute a block with neurons on both devices, with the bias of down; x is contiguous."""
        weights = None if routing is None else routing.weights
        if block.slots.is_full:
            y = masked_ffn(x, block.hot, mask, weights)
        elif self.takes_neurons(len(x)):
            y = self._with_chunks(x, block, mask, weights)
        else:
            y = self._with_cpu(x, block, mask, weights, is_prompt)
        return y if routing is None else routing.add_biases(y)

    def _with_cpu(
        self,
        x: Tensor,
        block: SplitFFN,
        mask: Mask,
        weights: Tensor | None,
        is_prompt: BoolArray | None,
    ) -> Tensor:
        """Compute the hot neurons here and the cold ones on the CPU."""
        is_cold = block.slots.slot_of_neuron < 0
        selected = np.ones((len(x), 1), np.uint8) if mask is None else self._gpu.to_host(mask)
        active = ActiveIds.of_mask((selected != 0) & is_cold)
        # Queued before the CPU begins, so that both compute.
        y = masked_ffn(x, block.hot, mask, weights, has_down_bias=False)
        on_host = self._gpu.to_host(x)
        if weights is None:
            cold = self._cpu.ffn_active(on_host, block.cpu, active, is_prompt)
        else:
            shares = self._gpu.to_host(weights)
            cold = self._cpu.weighted_ffn(on_host, block.cpu, active, shares, is_prompt)
        self._gpu.add(y, self._gpu.to_device(cold))
        return y

    def _with_chunks(
        self, x: Tensor, block: SplitFFN, mask: Mask, weights: Tensor | None
    ) -> Tensor:
        """Add up the hot neurons and the chunks of cold ones."""
        # Neurons that are columns of the file's down are sent in ranges, which include hot ones.
        hot, wanted = block.hot, block.slots.cold
        if not block.cpu.is_down_transposed:
            hot = replace(hot, neuron_of_slot=hot.neuron_of_slot[:0])
            wanted = np.arange(block.num_neurons, dtype=np.int32)
        y = masked_ffn(x, hot, mask, weights)
        size = chunk_neurons(hot.neuron_bytes, block.num_neurons, self._settings.chunk_bytes)
        pieces = [wanted[first : first + size] for first in range(0, len(wanted), size)]
        chunks = [_chunk_of(self._uploads, block.cpu, ids, size) for ids in pieces]
        for ids, chunk in zip(pieces, self._stream.each(chunks), strict=True):
            sent = replace(
                chunk,
                neuron_of_slot=self._gpu.to_device(ids),
                slot_of_neuron=hot.slot_of_neuron,
                counters=hot.counters,
            )
            self._gpu.add(y, masked_ffn(x, sent, mask, weights, has_down_bias=False))
        return y

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


def _chunk_of(uploads: Uploads, ffn: NativeFFN, ids: IntArray, num_slots: int) -> Chunk[HotNeurons]:
    # Not of the block, which refers to the device's memory.
    slots = np.arange(len(ids), dtype=np.int32)
    return Chunk(
        lambda arena: Placer(uploads, arena).empty_neurons(ffn, num_slots),
        lambda hot: uploads.neurons(ffn, hot, ids, slots),
    )
