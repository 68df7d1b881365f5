"""Placement of experts: the neurons that a router selects, and their groups.

Expert e of a layer has the neurons [e * size, (e + 1) * size). A token uses those of the experts
that its router selects, so the frequency for placement is p(expert is selected) * p(neuron fires |
expert is selected).
"""

import numpy as np
import numpy.typing as npt

from powerinfer.values import IntArray

__all__ = ["asked_frequency", "grouped_order"]

_Frequencies = npt.NDArray[np.float64]


def asked_frequency(frequency: _Frequencies, num_experts: int, num_used: int) -> _Frequencies:
    """Estimate how often each neuron's expert is selected: f64[num_neurons]; 1 without experts.

    Counts of firing neurons do not contain that. Experts are assumed to be selected in proportion
    to the firing of their neurons, and at least as often as any of these fires.

    Args:
        frequency: f64[num_neurons], firing frequency.
        num_experts: experts of the layer; 1 without a router.
        num_used: experts selected for a token.
    """
    if num_experts == 1:
        return np.ones_like(frequency)
    by_expert = frequency.reshape(num_experts, -1)
    sums = by_expert.sum(axis=1)
    total = sums.sum()
    shares = sums / total if total else np.full(num_experts, 1 / num_experts)
    chosen = np.clip(num_used * shares, by_expert.max(axis=1), 1.0)
    return np.repeat(chosen, by_expert.shape[1])


def grouped_order(
    order: IntArray, frequency: _Frequencies, num_experts: int, size: int
) -> IntArray:
    """Order neurons, i32[num_neurons], such that groups of `size` never span two experts.

    Neurons of an expert are grouped by falling frequency, and groups are ordered by their total
    frequency. The last group of an expert may be smaller; such groups come last, so that every full
    one begins at a multiple of `size`.

    Args:
        order: i32[num_neurons], neurons by falling frequency.
        frequency: f64[num_neurons].
        num_experts: experts of the layer; 1 without a router.
        size: neurons per group.
    """
    if num_experts == 1:
        return order
    expert_size = len(order) // num_experts
    by_expert = order[np.argsort(order // expert_size, kind="stable")].reshape(num_experts, -1)
    num_full = expert_size // size * size
    full = by_expert[:, :num_full].reshape(-1, size)
    falling = np.argsort(-frequency[full].sum(axis=1), kind="stable")
    return np.concatenate([full[falling].reshape(-1), by_expert[:, num_full:].reshape(-1)])
