"""A penalty on dense FFN activity, for training models whose neurons are mostly zero."""

import torch
from torch import Tensor

__all__ = ["DensityPenalty"]


class DensityPenalty:
    """A differentiable measure of the density of a forward pass, whatever the scale of its neurons.

    For a token with neuron values n, ``sum(|n|)**2 / (size * sum(n**2))`` is the share of active
    neurons if all active ones are equal, and less if few dominate. Each layer's mean over tokens of
    the square root is squared, so that dense layers are pushed more than sparse ones.
    """

    def __init__(self) -> None:
        self._layers: list[Tensor] = []

    def __call__(self, layer: int, neurons: Tensor) -> None:
        """Observe neurons[batch, seq_len, intermediate_size] of one layer."""
        length = (neurons * neurons).sum(-1).add(1e-6).sqrt()
        share = (neurons.abs().sum(-1) / length).mean() / neurons.shape[-1] ** 0.5
        self._layers.append(share * share)

    def mean(self) -> Tensor:
        """Mean over the layers observed, a scalar from 0 to 1."""
        return torch.stack(self._layers).mean()
