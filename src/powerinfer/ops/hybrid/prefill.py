"""A feed-forward block whose neurons lie on two devices, for the many tokens of a prompt.

The GPU computes its own neurons densely, masked by each token's selection. The weights of cold
neurons are sent in chunks to two alternating buffers, each while the GPU computes with the previous
chunk. For few tokens sending takes longer than computing on the CPU, which then computes them. The
result is the same up to rounding.
"""

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.ffn import HotNeurons, masked_ffn
from powerinfer.ops.gpu.formats import chunk_neurons
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.selection import Routing, add_expert_biases
from powerinfer.ops.gpu.uploads import Chunk, ChunkStream
from powerinfer.ops.hybrid.decode import Mask, SplitFFN
from powerinfer.ops.hybrid.upload import Uploads
from powerinfer.ops.protocol import ActiveIds
from powerinfer.values import BoolArray, IntArray

__all__ = ["PrefillFFN"]

MaskArray: TypeAlias = npt.NDArray[np.uint8]


class PrefillFFN:
    """Runs blocks for more tokens than those of a decode step."""

    def __init__(
        self,
        cpu: NativeOps,
        gpu: TorchGPU,
        uploads: Uploads,
        stream: ChunkStream,
        *,
        crossover: int,
        chunk_bytes: int,
    ) -> None:
        """Take both devices.

        Args:
            cpu: holds all weights.
            gpu: computes.
            uploads: copies weights from the CPU to the GPU.
            stream: does so in the background.
            crossover: least number of tokens for which cold weights are sent.
            chunk_bytes: approximate size of a buffer, see `gpu.formats.chunk_neurons`.
        """
        self._cpu = cpu
        self._gpu = gpu
        self._uploads = uploads
        self._stream = stream
        self._crossover = crossover
        self._chunk_bytes = chunk_bytes

    def asks_cpu(self, num_tokens: int) -> bool:
        """Test whether the CPU computes the cold neurons of this number of tokens."""
        return num_tokens < self._crossover

    def run(
        self,
        x: Tensor,
        block: SplitFFN,
        mask: Mask,
        routing: Routing | None,
        is_prompt: BoolArray | None,
    ) -> Tensor:
        """Compute the block, with the bias of down: f32[num_tokens, hidden_size] on the device.

        Args:
            x: f32[num_tokens, hidden_size] on the device, contiguous.
            block: a block with neurons on both devices.
            mask: selected neurons.
            routing: chosen experts; None without experts.
            is_prompt: bool[num_tokens], for the CPU; see `powerinfer.ops.protocol.Ops`.
        """
        weights = None if routing is None else routing.weights
        if block.slots.is_full:
            y = masked_ffn(x, block.hot, mask, weights)
        elif self.asks_cpu(len(x)):
            y = self._cold_on_cpu(x, block, mask, weights, is_prompt)
        else:
            y = self._streamed(x, block, mask, weights)
        if routing is None or block.router is None:
            return y
        return add_expert_biases(y, routing, block.router)

    def _cold_on_cpu(
        self,
        x: Tensor,
        block: SplitFFN,
        mask: Mask,
        weights: Tensor | None,
        is_prompt: BoolArray | None,
    ) -> Tensor:
        active = _cold_of(None if mask is None else self._gpu.to_host(mask), block, len(x))
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

    def _streamed(self, x: Tensor, block: SplitFFN, mask: Mask, weights: Tensor | None) -> Tensor:
        """Add up the hot neurons and the chunks of cold ones."""
        # Neurons that are columns of the file's down are sent in ranges, which include hot ones.
        hot, wanted = block.hot, block.slots.cold
        if not block.cpu.is_down_transposed:
            hot = replace(hot, neuron_of_slot=hot.neuron_of_slot[:0])
            wanted = np.arange(block.num_neurons, dtype=np.int32)
        y = masked_ffn(x, hot, mask, weights)
        size = chunk_neurons(hot.neuron_bytes, block.num_neurons, self._chunk_bytes)
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


def _chunk_of(uploads: Uploads, ffn: NativeFFN, ids: IntArray, num_slots: int) -> Chunk[HotNeurons]:
    # Not of the block, which refers to the device's memory.
    slots = np.arange(len(ids), dtype=np.int32)
    return Chunk(
        lambda arena: uploads.placer(arena).empty_neurons(ffn, num_slots),
        lambda hot: uploads.neurons(ffn, hot, ids, slots),
    )


def _cold_of(mask: MaskArray | None, block: SplitFFN, num_tokens: int) -> ActiveIds:
    """Select the cold neurons among the selected ones."""
    is_cold = block.slots.slot_of_neuron < 0
    if mask is None:
        return ActiveIds.of_mask(np.broadcast_to(is_cold, (num_tokens, len(is_cold))))
    return ActiveIds.of_mask((mask != 0) & is_cold)
