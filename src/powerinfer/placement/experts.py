"""What a router means for placement: which neurons a token asks at all, and what moves together.

Expert e of a layer has the neurons [e * size, (e + 1) * size). A token asks those of the experts
that its router chooses; of these a neuron fires as ever. So the frequency that a placement is
based on is p(expert is chosen) * p(neuron fires, if so).
"""

import numpy as np
import numpy.typing as npt

from powerinfer.values import IntArray

__all__ = ["asked_frequency", "grouped_order"]

_Frequencies = npt.NDArray[np.float64]


def asked_frequency(frequency: _Frequencies, num_experts: int, num_used: int) -> _Frequencies:
    """How often each neuron's expert is chosen: f64[num_neurons]; 1 for a layer without experts.

    Counts of firing neurons do not say that. Experts are taken to be chosen as often as their
    neurons fire, `num_used` of them for a token, and no less often than any of their neurons.

    Args:
        frequency: f64[num_neurons], how often each fires.
        num_experts: of the layer; 1 without a router.
        num_used: of them, for a token.
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
    """Neurons by falling frequency, such that groups of `size` never straddle an expert.

    Neurons of an expert are grouped by falling frequency, and groups follow each other by the
    frequency of all their neurons. The last group of an expert may be smaller; such groups come
    last, so that every full one begins at a multiple of `size`.

    Args:
        order: i32[num_neurons], neurons by falling frequency.
        frequency: f64[num_neurons].
        num_experts: of the layer; 1 without a router.
        size: of a group.

    Returns:
        i32[num_neurons].
    """
    if num_experts == 1:
        return order
    expert_size = len(order) // num_experts
    by_expert = order[np.argsort(order // expert_size, kind="stable")].reshape(num_experts, -1)
    num_full = expert_size // size * size
    full = by_expert[:, :num_full].reshape(-1, size)
    falling = np.argsort(-frequency[full].sum(axis=1), kind="stable")
    return np.concatenate([full[falling].reshape(-1), by_expert[:, num_full:].reshape(-1)])
