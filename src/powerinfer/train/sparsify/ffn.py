"""The gated FFN with an activation that can be exchanged, in place of transformers' own."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from powerinfer.train.autocast import working
from powerinfer.train.fused import DualReLU

__all__ = ["ACTIVATIONS", "ActivationName", "GatedFFN", "NeuronObserver"]

ActivationName = Literal["silu", "relu", "drelu"]
ACTIVATIONS: tuple[ActivationName, ...] = ("silu", "relu", "drelu")

NeuronObserver = Callable[[int, Tensor], None]
"""Called with (layer, neurons [batch, seq_len, intermediate_size]) for every FFN evaluated."""


class GatedFFN(nn.Module):
    """``down(neurons)``, with neurons ``silu(gate) * up``, ``relu(gate) * up`` or dReLU's.

    Attributes:
        activation: `silu` (SwiGLU), `relu` (ReGLU) or `drelu` (``relu(gate) * relu(up)``).
        kept: number of largest values kept for each token; None for all.
    """

    def __init__(
        self, projections: tuple[nn.Linear, nn.Linear, nn.Linear], layer: int, name: ActivationName
    ) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = projections
        self.layer = layer
        self.activation: ActivationName = name
        self.observer: NeuronObserver | None = None
        self.kept: int | None = None

    def neurons(self, x: Tensor) -> Tensor:
        """Neuron values [batch, seq_len, intermediate_size] of x [batch, seq_len, hidden_size]."""
        x = working(x)
        gate, up = self.gate_proj(x), self.up_proj(x)
        if self.activation == "drelu":
            neurons: Tensor = DualReLU.apply(gate, up)  # type: ignore[no-untyped-call]
            return neurons
        active = F.silu(gate) if self.activation == "silu" else F.relu(gate)
        product: Tensor = active * up
        return product

    def forward(self, x: Tensor) -> Tensor:
        """Map x [batch, seq_len, hidden_size] to the output of the same shape."""
        neurons = self.neurons(x)
        if self.kept is not None:
            neurons = _largest(neurons, self.kept)
        if self.observer is not None:
            self.observer(self.layer, neurons)
        output: Tensor = self.down_proj(neurons)
        return output


def _largest(neurons: Tensor, count: int) -> Tensor:
    """Set all but the `count` largest values of each token to zero."""
    chosen = neurons.abs().topk(count, dim=-1, sorted=False).indices
    return torch.zeros_like(neurons).scatter(-1, chosen, neurons.gather(-1, chosen))
