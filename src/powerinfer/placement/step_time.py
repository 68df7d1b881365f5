"""Predicted time of a plan, decode step and prompt tokens: bytes over measured speeds, by layer.

Consecutive layers on the GPU are one run, a recorded graph with a fixed cost, which ends with the
output head if that is on the GPU too. Layers on the CPU between runs need no hand-off.

Prompts are computed in batches of many tokens, in which nearly every neuron fires for some token,
so the GPU computes its layers densely. Computing on the GPU is left out, as it takes the same time
wherever the weights came from.

Paper: "Offline neuron placement" (arXiv 2312.12456).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import LayerSizes, PlacementProblem
from powerinfer.values import IntArray

__all__ = [
    "MEMORY_WORTH",
    "HotNeurons",
    "hot_neurons",
    "layer_s",
    "num_runs",
    "output_s",
    "prompt_s",
    "rounded_s",
    "run_s",
    "step_s",
    "timed_plan",
    "token_s",
]

_Float = npt.NDArray[np.float64]

# Multiples of 2^-44 s (57 fs) add up exactly in f64 to 512 s: the predicted time of a step does not
# depend on the order of summation, nor the comparison of two plans on rounding.
_TICKS_PER_S = float(1 << 44)

MEMORY_WORTH = 0.03
"""Relative cost that a plan may have above the best for holding more on the GPU.

Predictions are no more accurate than this, and unused memory helps no other text.
"""

# Speed-up of a token on the CPU in a batch over one alone, for which each weight is read: with the
# kernels of this project 3.4 (Q4_0), 5.3 (Q8_0) to 7.5 (F16), at 7B width.
_BATCH_GAIN = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class HotNeurons:
    """Candidates for a layer's hot neurons, as counts, and the times of the layer with them.

    Attributes:
        count: f64[n], number of hot neurons.
        expected: f64[n], number of them firing for a token: the sum of their frequencies.
        asked: f64[n], number of them checked for a token: those of the experts selected for it,
            all without experts.
        expected_total: `expected` of the whole layer; so `asked_total`.
    """

    problem: PlacementProblem
    layer: LayerSizes
    count: _Float
    expected: _Float
    asked: _Float
    expected_total: float
    asked_total: float

    @classmethod
    def first_of(
        cls, problem: PlacementProblem, number: int, order: IntArray, num_hot: npt.NDArray[np.int64]
    ) -> "HotNeurons":
        """Take the first `num_hot`, i64[n], neurons of an order of those of layer `number`."""
        frequency, asked = problem.stats.rounded(number), problem.asked(number)
        # Sums of these are exact in any order.
        expected, checked = (
            np.concatenate([[0.0], np.cumsum(each[order])])[num_hot] for each in (frequency, asked)
        )
        count, layer = num_hot.astype(np.float64), problem.sizes.layers[number]
        totals = float(frequency.sum()), float(asked.sum())
        return cls(problem, layer, count, expected, checked, *totals)

    def step_s(self, *, has_attention: bool, has_predictor: bool) -> _Float:
        """Predict the layer in a decode step: f64[n], seconds in multiples of 2^-44.

        Attention and FFN run one after the other, in a parallel layer at the same time. The CPU
        starts on the cold neurons when the predictor is done, wherever that is. Cold neurons of a
        layer on the GPU cost one hand-off, with their predictor if that is on the CPU; layers on
        the CPU cost none.
        """
        gpu, cpu, layer = self.problem.cost.gpu, self.problem.cost.cpu, self.layer
        host, has_cold = layer.host_reads, self._num_cold > 0
        # Neurons of experts that are not selected are not predicted, nor are their rows read.
        asked_share = self.asked_total / self.problem.sizes.num_neurons
        hot_s = gpu.neurons_s(
            self.count, self.asked, self.expected, layer.idle_bytes, layer.active_bytes
        )
        down_bytes = host.down_bytes * self.asked_total / self.problem.sizes.num_neurons
        cold_s = self.cold_s() + np.where(has_cold, down_bytes / cpu.read_bytes_per_s, 0.0)
        attention_bytes = layer.attention_bytes if has_attention else host.attention_bytes
        attention_s = (gpu if has_attention else cpu).part_s(attention_bytes + layer.kv_read_bytes)
        first_s = 0.0
        if has_predictor:
            first_s = gpu.part_s(layer.predictor_bytes * asked_share)
        else:
            predictor_s = cpu.part_s(host.predictor_bytes * asked_share)
            cold_s = cold_s + np.where(has_cold, predictor_s, 0.0)
        if not has_attention:
            return rounded_s(attention_s + cold_s)
        away_s = np.where(has_cold, self.problem.cost.handoff_s + cold_s, 0.0)
        if self.problem.sizes.is_parallel:
            return rounded_s(first_s + np.maximum(attention_s + hot_s, away_s))
        return rounded_s(attention_s + first_s + np.maximum(hot_s, away_s))

    def prompt_s(self, *, has_attention: bool) -> _Float:
        """Predict the layer per prompt token of a full batch: f64[n], in multiples of 2^-44 s.

        A layer on the GPU is read once per batch. Its cold neurons are sent to it once per batch,
        or computed by the CPU for each token, whichever is faster. A layer on the CPU is read
        whole, `_BATCH_GAIN` times faster than for a token alone.
        """
        problem, layer, host = self.problem, self.layer, self.layer.host_reads
        num_neurons, batch_tokens = problem.sizes.num_neurons, problem.batch_tokens
        if not has_attention:
            neuron_bytes = host.idle_bytes + host.active_bytes
            whole_bytes = neuron_bytes * num_neurons + host.down_bytes
            neurons_bytes = whole_bytes * self.asked_total / num_neurons
            read_s = (host.attention_bytes + neurons_bytes) / problem.cost.cpu.read_bytes_per_s
            return rounded_s(np.full_like(self.count, read_s / _BATCH_GAIN))
        held_bytes = layer.attention_bytes + layer.neuron_bytes * num_neurons
        read_s = held_bytes / problem.cost.gpu.read_bytes_per_s / batch_tokens
        send_bytes = layer.neuron_bytes * self._num_cold
        send_s = send_bytes / problem.cost.transfer_bytes_per_s / batch_tokens
        return rounded_s(read_s + np.minimum(send_s, self.cold_s()))

    def cold_s(self) -> _Float:
        """Predict the CPU's seconds for the rows of the cold neurons: f64[n]."""
        host = self.layer.host_reads
        return self.problem.cost.cpu.neurons_s(
            self._num_cold,
            self.asked_total - self.asked,
            self.expected_total - self.expected,
            host.idle_bytes,
            host.active_bytes,
        )

    @property
    def _num_cold(self) -> _Float:
        return self.problem.sizes.num_neurons - self.count


def hot_neurons(problem: PlacementProblem, plan: PlacementPlan, number: int) -> HotNeurons:
    """Count the hot neurons of one layer of a plan, as arrays of length 1."""
    hot = plan.layers[number].hot
    return HotNeurons.first_of(problem, number, hot, np.array([len(hot)]))


def output_s(problem: PlacementProblem, *, on_gpu: bool) -> float:
    """Predict the seconds of the output head and its norm, in multiples of 2^-44."""
    sizes, cost = problem.sizes, problem.cost
    host_bytes = sizes.output_bytes if sizes.host_output_bytes is None else sizes.host_output_bytes
    seconds = cost.gpu.part_s(sizes.output_bytes) if on_gpu else cost.cpu.part_s(host_bytes)
    return float(rounded_s(seconds))


def run_s(problem: PlacementProblem) -> float:
    """Return the fixed seconds of one run of layers on the GPU, in multiples of 2^-44."""
    return float(rounded_s(problem.cost.run_s))


def timed_plan(
    problem: PlacementProblem,
    solver: str,
    budget_bytes: int,
    layers: Sequence[LayerPlacement],
    *,
    has_output: bool,
) -> PlacementPlan:
    """Make a plan of a problem with its predicted time."""
    identity, num_neurons = problem.model_identity, problem.sizes.num_neurons
    plan = PlacementPlan(
        identity, solver, budget_bytes, num_neurons, has_output, layers=tuple(layers)
    )
    return replace(plan, predicted_s=step_s(problem, plan))


def num_runs(plan: PlacementPlan) -> int:
    """Count runs of consecutive layers on the GPU; a head after layers on the CPU is its own."""
    on_gpu = [layer.has_attention for layer in plan.layers]
    if plan.has_output:
        on_gpu.append(True)
    return sum(now and not before for before, now in pairwise([False, *on_gpu]))


def layer_s(problem: PlacementProblem, plan: PlacementPlan, number: int) -> float:
    """Predict the seconds of one layer of a plan, from its input to its output."""
    placed = plan.layers[number]
    seconds = hot_neurons(problem, plan, number).step_s(
        has_attention=placed.has_attention, has_predictor=placed.has_predictor
    )
    return float(seconds[0])


def step_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Predict the seconds of one decode step of one token, fixed costs of runs included."""
    plan.check_shape(len(problem.sizes.layers), problem.sizes.num_neurons)
    layers = [layer_s(problem, plan, number) for number in range(len(plan.layers))]
    head_s = output_s(problem, on_gpu=plan.has_output)
    return math.fsum([*layers, head_s, num_runs(plan) * run_s(problem)])


def prompt_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Predict the seconds of one prompt token in a full batch."""
    return math.fsum(
        float(hot_neurons(problem, plan, number).prompt_s(has_attention=placed.has_attention)[0])
        for number, placed in enumerate(plan.layers)
    )


def token_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Return the cost of a plan: a decode step and the prompt tokens per decoded token."""
    return step_s(problem, plan) + problem.prompt_tokens * prompt_s(problem, plan)


def rounded_s(seconds: npt.NDArray[np.floating[Any]] | float) -> _Float:
    """Round to multiples of 2^-44 s."""
    return np.asarray(np.rint(seconds * _TICKS_PER_S) / _TICKS_PER_S, np.float64)
