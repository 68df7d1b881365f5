"""The goal of predictors, and their largest size."""

from dataclasses import dataclass

__all__ = ["RANK_STEP", "THRESHOLD", "Goal"]

RANK_STEP = 32
"""Ranks are multiples of it."""

THRESHOLD = -1.0
"""A neuron passes if its score is not below; the same for all layers, as the file has only one.

It is negative because without biases a score of 0 is what a network answers that saw nothing: there
neurons pass. Each neuron's own working point is its row of `fc2`, scaled so that it lies here.
"""


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal that predictors must reach on held-out text.

    Attributes:
        recall: least share of the firing neurons that pass.
        max_density: most neurons that may pass, as a multiple of those that fire.
        max_share: most parameters of all predictors together, as a share of the model's; wins over
            the others.
        max_ffn_error: largest relative error of an FFN's output, where it is measured.
    """

    recall: float = 0.95
    max_density: float = 2.0
    max_share: float = 0.10
    max_ffn_error: float = 0.015
