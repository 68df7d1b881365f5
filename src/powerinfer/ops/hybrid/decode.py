"""A feed-forward block whose neurons lie on two devices, for the few tokens of a decode step.

`start`: the GPU decides which neurons are active, leaves the block's input and the cold ones among
them in memory that both devices see, and tells the CPU. `finish`: the GPU computes its own
neurons, waits for the CPU's sum and adds it. Nothing here waits for the device by itself, so the
same calls can be recorded. Paper: "Hybrid Execution" (arXiv 2312.12456, section 5.3).

Of a block whose predictor is on the CPU the GPU holds nothing: the CPU gets the predictor's input
too, and computes all of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.gpu.ffn import DevicePredictor, HotNeurons, hot_ffn, predict, write_cold
from powerinfer.ops.gpu.kernels.handover import add_from_host, copy_to_host, update_scores
from powerinfer.ops.gpu.memory import SharedBuffers
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.router import DeviceRouter, Routing, add_expert_biases
from powerinfer.ops.hybrid.handoff.methods import Handoff
from powerinfer.ops.hybrid.migration import SlotTable
from powerinfer.ops.protocol import ActiveIds

__all__ = ["DecodeFFN", "HandedFFN", "Mask", "SplitFFN", "listed", "predicted"]

Mask: TypeAlias = Tensor | None
"""u8[num_tokens, num_neurons] on the device, 1 for neurons to be computed; None for all."""


@dataclass(slots=True, eq=False)
class SplitFFN:
    """One block on two devices.

    Attributes:
        number: of its layer.
        cpu: prepared by the CPU backend; holds all neurons.
        hot: those on the GPU, and the bias of down.
        predictor: on the GPU too; None where every neuron is computed that fires, or all are.
        slots: the host's copy of which neurons are hot.
        handoff_layer: its number in the exchange; None where no neuron is ever cold.
        router: on the GPU, of a block of experts; else None.
        scores: f32[num_neurons] on the device, how often each neuron fired lately; None where
            nobody asks.
    """

    number: int
    cpu: NativeFFN
    hot: HotNeurons
    predictor: DevicePredictor | None
    slots: SlotTable
    handoff_layer: int | None
    router: DeviceRouter | None = None
    scores: Tensor | None = field(default=None, repr=False)

    @property
    def num_neurons(self) -> int:
        """Of the whole block."""
        return len(self.slots.slot_of_neuron)

    @property
    def num_hot(self) -> int:
        """Those on the GPU."""
        return int((self.slots.neuron_of_slot >= 0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class HandedFFN:
    """A block that the CPU computes, its predictor included, of a layer whose rest is on the GPU.

    Attributes:
        number: of its layer.
        cpu: prepared by the CPU backend.
        down_bias: f32[hidden_size] on the device, or None.
        handoff_layer: its number in the exchange.
    """

    number: int
    cpu: NativeFFN
    down_bias: Tensor | None
    handoff_layer: int


class DecodeFFN:
    """Runs blocks for up to `max_tokens` tokens.

    Attributes:
        handoff: how the CPU's half is told; of the run that is being queued.
    """

    def __init__(self, buffers: SharedBuffers, handoff: Handoff, score_decay: float) -> None:
        """Take what both devices share.

        Args:
            buffers: memory that the CPU's half reads and writes.
            handoff: the first one.
            score_decay: of the running scores of neurons, per step.
        """
        self.handoff = handoff
        self._buffers = buffers
        self._score_decay = score_decay

    def start(
        self, x: Tensor, block: SplitFFN, mask: Mask, routing: Routing | None = None
    ) -> Callable[[], Tensor]:
        """Hand the cold neurons over; the result computes the hot ones and adds everything.

        Args:
            x: f32[num_tokens, hidden_size] on the device, contiguous.
            block: the block.
            mask: of the neurons that count.
            routing: of a block of experts.
        """
        if mask is not None and block.scores is not None:
            update_scores(block.scores, mask, self._score_decay)
        layer, num_tokens = block.handoff_layer, len(x)
        if layer is None:
            return lambda: _hot(x, block, mask, routing)
        copy_to_host(x, self._buffers.x[:num_tokens])
        write_cold(mask, block.hot, self._buffers.cold[:num_tokens])
        if routing is not None:
            copy_to_host(routing.weights, self._buffers.expert_weights[:num_tokens])
        self.handoff.signal(layer, num_tokens)
        return lambda: self._sum(_hot(x, block, mask, routing), layer)

    def start_handed(
        self, x: Tensor, block: HandedFFN, scored: Tensor, routed: Tensor
    ) -> Callable[[], Tensor]:
        """Hand the whole block over; the result waits for it.

        Args:
            x: f32[num_tokens, hidden_size] on the device, contiguous.
            block: the block.
            scored: the same of what its predictor looks at.
            routed: the same of what its router looks at, if it has one.
        """
        num_tokens = len(x)
        copy_to_host(x, self._buffers.x[:num_tokens])
        copy_to_host(scored, self._buffers.predictor_input[:num_tokens])
        if block.cpu.router is not None:
            copy_to_host(routed, self._buffers.router_input[:num_tokens])
        self.handoff.signal(block.handoff_layer, num_tokens)
        y = torch.zeros_like(x)
        if block.down_bias is not None:
            y += block.down_bias
        return lambda: self._sum(y, block.handoff_layer)

    def _sum(self, y: Tensor, layer: int) -> Tensor:
        """Wait for the CPU's half and add it to the device's."""
        self.handoff.wait(layer, len(y))
        add_from_host(y, self._buffers.y[: len(y)])
        return y


def _hot(x: Tensor, block: SplitFFN, mask: Mask, routing: Routing | None) -> Tensor:
    """The GPU's neurons, and the biases of down."""
    if routing is None or block.router is None:
        return hot_ffn(x, block.hot, mask)
    y = hot_ffn(x, block.hot, mask, routing.weights)
    return add_expert_biases(y, routing, block.router)


def predicted(block: SplitFFN, scored: Tensor, routing: Routing | None = None) -> Mask:
    """Which neurons router and predictor let pass; None where the block has neither.

    Args:
        block: the block.
        scored: f32[num_tokens, hidden_size] on the device, what the predictor looks at.
        routing: of a block of experts.
    """
    mask = None if routing is None else routing.mask(block.num_neurons)
    return mask if block.predictor is None else predict(scored, block.predictor, mask)


def listed(
    active: ActiveIds, num_neurons: int, gpu: TorchGPU, routing: Routing | None = None
) -> Mask:
    """A mask of neurons that were listed on the host; of experts, of those that are chosen."""
    num_tokens = len(active.offsets) - 1
    mask = np.zeros((num_tokens, num_neurons), np.uint8)
    tokens = np.repeat(np.arange(num_tokens), np.diff(active.offsets))
    mask[tokens, active.ids] = 1
    on_device = gpu.to_device(mask)
    return on_device if routing is None else on_device.mul_(routing.mask(num_neurons))
