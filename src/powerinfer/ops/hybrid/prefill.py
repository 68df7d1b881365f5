"""A feed-forward block whose neurons lie on two devices, for the many tokens of a prompt.

The GPU computes its own neurons densely, masked by each token's selection. The weights of cold
neurons are sent in chunks to two alternating buffers, each while the GPU computes with the previous
chunk. For few tokens sending takes longer than computing on the CPU, which then computes them. The
result is the same up to rounding.
"""

from collections.abc import Hashable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from torch import Tensor

from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.ffn import HotNeurons, masked_ffn
from powerinfer.ops.gpu.formats import chunk_neurons
from powerinfer.ops.gpu.memory import Arena
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.selection import Routing, add_expert_biases
from powerinfer.ops.gpu.uploads import Uploader
from powerinfer.ops.hybrid.decode import Mask, SplitFFN
from powerinfer.ops.hybrid.upload import Placer, Uploads
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
        uploader: Uploader,
        *,
        crossover: int,
        chunk_bytes: int,
        memory: Tensor,
    ) -> None:
        """Take both devices.

        Args:
            cpu: holds all weights.
            gpu: computes.
            uploads: copies weights from the CPU to the GPU.
            uploader: does so in the background.
            crossover: least number of tokens for which cold weights are sent.
            chunk_bytes: approximate size of a buffer, see `gpu.formats.chunk_neurons`.
            memory: u8[2, num_bytes] on the device, the buffers.
        """
        self._cpu = cpu
        self._gpu = gpu
        self._uploads = uploads
        self._uploader = uploader
        self._crossover = crossover
        self._chunk_bytes = chunk_bytes
        self._memory = memory
        self._buffers: dict[Hashable, tuple[HotNeurons, HotNeurons]] = {}

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
        for ids, chunk in self._chunks(block, wanted):
            sent = replace(
                chunk,
                neuron_of_slot=self._gpu.to_device(ids),
                slot_of_neuron=hot.slot_of_neuron,
                counters=hot.counters,
            )
            self._gpu.add(y, masked_ffn(x, sent, mask, weights, has_down_bias=False))
        return y

    def _chunks(self, block: SplitFFN, wanted: IntArray) -> Iterator[tuple[IntArray, HotNeurons]]:
        """Yield neurons with their buffer, valid until the chunk after the next."""
        buffers = self._buffers_for(block)
        size = buffers[0].num_slots
        pieces = [wanted[first : first + size] for first in range(0, len(wanted), size)]

        def load(number: int) -> None:
            ids = pieces[number]
            slots = np.arange(len(ids), dtype=np.int32)
            self._uploads.neurons(block.cpu, buffers[number % 2], ids, slots)

        upload = self._uploader.submit(partial(load, 0), self._uploader.mark())
        for number, ids in enumerate(pieces):
            arriving = upload
            if number + 1 < len(pieces):
                # All work on the other buffer has been queued by now. Not after the wait below, in
                # which the thread of uploads would have nothing to do.
                used = self._uploader.mark()
                upload = self._uploader.submit(partial(load, number + 1), used)
            arriving.join()
            yield ids, buffers[number % 2]

    def _buffers_for(self, block: SplitFFN) -> tuple[HotNeurons, HotNeurons]:
        """Return two buffers for chunks of such blocks; those of others share the memory."""
        hot = block.hot
        parts = [part for part in (hot.gate, hot.up, hot.down) if part is not None]
        forms = tuple((part.format_name, part.values.dtype) for part in parts)
        biases = (hot.gate_bias is not None, hot.up_bias is not None)
        key = (forms, biases, hot.activation, hot.is_exact_sparse)
        if key not in self._buffers:
            num_slots = chunk_neurons(hot.neuron_bytes, block.num_neurons, self._chunk_bytes)
            first, second = (
                Placer(self._cpu, self._gpu, self._uploads, Arena(memory)).empty_neurons(
                    block.cpu, num_slots
                )
                for memory in self._memory
            )
            self._buffers[key] = (first, second)
        return self._buffers[key]


def _cold_of(mask: MaskArray | None, block: SplitFFN, num_tokens: int) -> ActiveIds:
    """Select the cold neurons among the selected ones."""
    is_cold = block.slots.slot_of_neuron < 0
    if mask is None:
        return ActiveIds.of_mask(np.broadcast_to(is_cold, (num_tokens, len(is_cold))))
    return ActiveIds.of_mask((mask != 0) & is_cold)
