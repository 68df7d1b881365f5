"""A feed-forward block whose neurons lie on two devices, for the few tokens of a decode step.

`start`: the GPU decides which neurons are active, writes the block's input and the cold ones among
them to memory that both devices see, and signals the CPU. `finish`: the GPU computes its own
neurons, waits for the CPU's sum and adds it. Python never waits for the device here, so the same
calls can be recorded. Paper: "Hybrid Execution" (arXiv 2312.12456, section 5.3).

If the predictor of a block is on the CPU, so is the whole block: the CPU gets the predictor's input
too.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.gpu.ffn import HotNeurons, hot_ffn
from powerinfer.ops.gpu.kernels.handover import add_to, copy_to_host, update_scores
from powerinfer.ops.gpu.kernels.listing import write_cold
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.selection import DevicePredictor, DeviceRouter, Routing, predict
from powerinfer.ops.hybrid.build import SharedBuffers
from powerinfer.ops.hybrid.handles import SlotTable
from powerinfer.ops.hybrid.handoff import Handoff
from powerinfer.ops.protocol import ActiveIds

__all__ = ["DecodeFFN", "HandedFFN", "Mask", "SplitFFN", "listed", "needs_matrices", "predicted"]

Mask: TypeAlias = Tensor | None
"""u8[num_tokens, num_neurons] on the device, 1 for neurons to be computed; None for all."""


@dataclass(slots=True, eq=False)
class SplitFFN:
    """One block on two devices.

    Attributes:
        cpu: all neurons, prepared by the CPU backend.
        hot: neurons on the GPU, and the bias of down.
        predictor: None if all neurons are computed, or all that fire.
        scores: f32[num_neurons] on the device, how often each neuron fired recently; None if
            neurons do not move.
        number: row of its counters; set, as the next, by `SplitBlocks.add`.
        handoff_layer: its number in the exchange; None if no neuron is ever cold.
    """

    cpu: NativeFFN
    hot: HotNeurons
    predictor: DevicePredictor | None
    slots: SlotTable
    router: DeviceRouter | None = None
    scores: Tensor | None = field(default=None, repr=False)
    number: int = -1
    handoff_layer: int | None = None

    @property
    def num_neurons(self) -> int:
        """Neurons of the whole block."""
        return len(self.slots.slot_of_neuron)

    @property
    def num_hot(self) -> int:
        """Neurons on the GPU."""
        return int((self.slots.neuron_of_slot >= 0).sum())


@dataclass(slots=True, eq=False)
class HandedFFN:
    """A block that the CPU computes, with its predictor, in a layer whose rest is on the GPU.

    Attributes:
        down_bias: f32[hidden_size] on the device, or None.
        handoff_layer: its number in the exchange; set by `SplitBlocks.add`.
    """

    cpu: NativeFFN
    down_bias: Tensor | None
    handoff_layer: int = -1


def needs_matrices(block: SplitFFN | HandedFFN) -> bool:
    """Test whether a prompt has to send the whole matrices of a block.

    Neurons of a `down` that is not stored by neurons cannot be sent without all others.
    """
    if isinstance(block, HandedFFN):
        return True
    return not block.cpu.is_down_transposed and not block.slots.is_full


class DecodeFFN:
    """Runs blocks for up to `max_tokens` tokens.

    Attributes:
        handoff: that of the run being queued.
    """

    def __init__(self, buffers: SharedBuffers, handoff: Handoff, score_decay: float) -> None:
        """Take the shared memory, the first hand-off, and the decay of scores per step."""
        self.handoff = handoff
        self._buffers = buffers
        self._score_decay = score_decay

    def start(
        self, x: Tensor, block: SplitFFN, mask: Mask, routing: Routing | None = None
    ) -> Callable[[], Tensor]:
        """Hand the cold neurons over; the result computes the hot ones and adds everything.

        `x` is f32[num_tokens, hidden_size] on the device, contiguous.
        """
        if mask is not None and block.scores is not None:
            update_scores(block.scores, mask, self._score_decay)
        layer, shared, num_tokens = block.handoff_layer, self._buffers, len(x)
        if layer is None:
            return lambda: _hot(x, block, mask, routing)
        copy_to_host(x, shared.x[:num_tokens])
        write_cold(mask, block.hot.slot_of_neuron, shared.cold[:num_tokens])
        if routing is not None:
            copy_to_host(routing.weights, shared.expert_weights[:num_tokens])
        self.handoff.signal(layer, num_tokens)
        return lambda: self._sum(_hot(x, block, mask, routing), layer)

    def start_handed(
        self, x: Tensor, block: HandedFFN, scored: Tensor, routed: Tensor
    ) -> Callable[[], Tensor]:
        """Hand the whole block over; the result waits for it.

        `scored` and `routed` are like x the inputs of its predictor and of its router, if any.
        """
        shared, num_tokens = self._buffers, len(x)
        copy_to_host(x, shared.x[:num_tokens])
        copy_to_host(scored, shared.predictor_input[:num_tokens])
        if block.cpu.router is not None:
            copy_to_host(routed, shared.router_input[:num_tokens])
        self.handoff.signal(block.handoff_layer, num_tokens)
        y = torch.zeros_like(x)
        if block.down_bias is not None:
            y += block.down_bias
        return lambda: self._sum(y, block.handoff_layer)

    def _sum(self, y: Tensor, layer: int) -> Tensor:
        """Wait for the CPU's half and add it to the device's."""
        self.handoff.wait(layer, len(y))
        add_to(y, self._buffers.y[: len(y)])
        return y


def _hot(x: Tensor, block: SplitFFN, mask: Mask, routing: Routing | None) -> Tensor:
    """Compute the GPU's neurons and add the biases of down."""
    if routing is None:
        return hot_ffn(x, block.hot, mask)
    return routing.add_biases(hot_ffn(x, block.hot, mask, routing.weights))


def predicted(block: SplitFFN, scored: Tensor, routing: Routing | None = None) -> Mask:
    """Select the neurons that router and predictor let pass; None if the block has neither.

    `scored`, f32[num_tokens, hidden_size] on the device, is the input of the predictor.
    """
    mask = None if routing is None else routing.mask(block.num_neurons)
    return mask if block.predictor is None else predict(scored, block.predictor, mask)


def listed(
    active: ActiveIds, num_neurons: int, gpu: TorchGPU, routing: Routing | None = None
) -> Mask:
    """Select the neurons that the host listed, of chosen experts only."""
    on_device = gpu.to_device(active.mask(num_neurons).view(np.uint8))
    return on_device if routing is None else on_device.mul_(routing.mask(num_neurons))
