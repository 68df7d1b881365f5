"""Predicted time of a plan, decode step and prompt tokens: bytes over measured speeds, by layer.

Consecutive layers on the GPU are one run, a recorded graph with a fixed cost, which ends with the
output head if that is on the GPU too. Layers on the CPU between runs need no hand-off.

Prompts are computed in batches of many tokens, in which nearly every neuron fires for some token,
so the GPU computes its layers densely. Computing on the GPU is left out, as it takes the same time
wherever the weights came from.

Paper: "Offline neuron placement" (arXiv 2312.12456).
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import LayerSizes, PlacementProblem

__all__ = [
    "MEMORY_WORTH",
    "HotShare",
    "LayerTime",
    "cold_neurons_s",
    "hot_share",
    "layer_prompt_times",
    "layer_time",
    "layer_times",
    "num_runs",
    "output_s",
    "prompt_s",
    "rounded_s",
    "run_s",
    "step_s",
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


@dataclass(frozen=True, slots=True)
class HotShare:
    """Candidates for a layer's hot neurons, as counts; totals are over the whole layer.

    Attributes:
        count: f64[n], number of hot neurons.
        expected: f64[n], number of them firing for a token: the sum of their frequencies.
        asked: f64[n], number of them checked for a token: those of the experts selected for it,
            all without experts.
    """

    count: _Float
    expected: _Float
    num_neurons: int
    expected_total: float
    asked: _Float
    asked_total: float


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Predicted seconds of one layer in one decode step of one token.

    Attributes:
        gpu_s: computing time of the GPU.
        cpu_s: computing time of the CPU.
        total_s: from the layer's input to its output, hand-offs included.
    """

    gpu_s: float
    cpu_s: float
    total_s: float


def layer_times(
    cost: CostModel,
    layer: LayerSizes,
    hot: HotShare,
    *,
    is_parallel: bool,
    has_attention: bool,
    has_predictor: bool,
) -> tuple[_Float, _Float, _Float]:
    """Predict one layer for many candidates of hot neurons at once.

    Attention and FFN run one after the other, in a parallel layer at the same time. The CPU starts
    on the cold neurons when the predictor is done, wherever that is. Cold neurons of a layer on the
    GPU cost one hand-off, with their predictor if that is on the CPU; layers on the CPU cost none.

    Returns:
        f64[n] each: seconds of the GPU, of the CPU, and of the whole layer; the last in multiples
        of 2^-44.
    """
    gpu, cpu, host = cost.gpu, cost.cpu, layer.host_reads
    cold_count = hot.num_neurons - hot.count
    hot_s = gpu.neurons_s(hot.count, hot.asked, hot.expected, layer.idle_bytes, layer.active_bytes)
    cold_s = cold_neurons_s(cost, layer, hot)
    down_bytes = host.down_bytes * hot.asked_total / hot.num_neurons
    cold_s = cold_s + np.where(cold_count > 0, down_bytes / cpu.read_bytes_per_s, 0.0)
    attention_bytes = layer.attention_bytes if has_attention else host.attention_bytes
    attention_s = (gpu if has_attention else cpu).part_s(attention_bytes + layer.kv_read_bytes)
    # Neurons of experts that are not selected are not predicted.
    asked_share = hot.asked_total / hot.num_neurons
    if has_predictor:
        first_s = gpu.part_s(layer.predictor_bytes * asked_share)
    else:
        first_s = 0.0
        cold_s = cold_s + np.where(
            cold_count > 0, cpu.part_s(host.predictor_bytes * asked_share), 0.0
        )
    away_s = np.where(cold_count > 0, cost.handoff_s + cold_s, 0.0)
    if not has_attention:
        computed = rounded_s(attention_s + cold_s)
        return np.zeros_like(computed), computed, computed
    if is_parallel:
        total = first_s + np.maximum(attention_s + hot_s, away_s)
    else:
        total = attention_s + first_s + np.maximum(hot_s, away_s)
    return attention_s + first_s + hot_s, cold_s, rounded_s(total)


def cold_neurons_s(cost: CostModel, layer: LayerSizes, hot: HotShare) -> _Float:
    """Predict the CPU's seconds for the rows of the cold neurons: f64[n]."""
    host = layer.host_reads
    return cost.cpu.neurons_s(
        hot.num_neurons - hot.count,
        hot.asked_total - hot.asked,
        hot.expected_total - hot.expected,
        host.idle_bytes,
        host.active_bytes,
    )


def output_s(problem: PlacementProblem, *, on_gpu: bool) -> float:
    """Predict the seconds of the output head and its norm, in multiples of 2^-44."""
    sizes, cost = problem.sizes, problem.cost
    if on_gpu:
        return float(rounded_s(np.float64(cost.gpu.part_s(sizes.output_bytes))))
    head = sizes.output_bytes if sizes.host_output_bytes is None else sizes.host_output_bytes
    return float(rounded_s(np.float64(cost.cpu.part_s(head))))


def run_s(problem: PlacementProblem) -> float:
    """Return the fixed seconds of one run of layers on the GPU, in multiples of 2^-44."""
    return float(rounded_s(np.float64(problem.cost.run_s)))


def num_runs(plan: PlacementPlan) -> int:
    """Count runs of consecutive layers on the GPU; a head after layers on the CPU is its own."""
    on_gpu = [layer.has_attention for layer in plan.layers]
    if plan.has_output:
        on_gpu.append(True)
    return sum(now and not before for before, now in pairwise([False, *on_gpu]))


def hot_share(problem: PlacementProblem, plan: PlacementPlan, number: int) -> HotShare:
    """Count the hot neurons of one layer of a plan, as arrays of length 1."""
    hot, frequency = plan.layers[number].hot, problem.stats.rounded(number)
    asked = problem.asked(number)
    return HotShare(
        np.array([len(hot)], np.float64),
        np.array([frequency[hot].sum()], np.float64),
        problem.sizes.num_neurons,
        float(frequency.sum()),
        np.array([asked[hot].sum()], np.float64),
        float(asked.sum()),
    )


def layer_time(problem: PlacementProblem, plan: PlacementPlan, number: int) -> LayerTime:
    """Predict one layer of a plan."""
    placement = plan.layers[number]
    times = layer_times(
        problem.cost,
        problem.sizes.layers[number],
        hot_share(problem, plan, number),
        is_parallel=problem.sizes.is_parallel,
        has_attention=placement.has_attention,
        has_predictor=placement.has_predictor,
    )
    return LayerTime(*(float(part[0]) for part in times))


def step_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Predict the seconds of one decode step of one token, fixed costs of runs included.

    Raises:
        PlacementError: the plan is of a model of another shape.
    """
    problem.sizes.check_shape(plan)
    layers = [layer_time(problem, plan, number).total_s for number in range(len(plan.layers))]
    head_s = output_s(problem, on_gpu=plan.has_output)
    return math.fsum([*layers, head_s, num_runs(plan) * run_s(problem)])


def rounded_s(seconds: _Float | np.float64) -> _Float:
    """Round to multiples of 2^-44 s."""
    return np.asarray(np.rint(seconds * _TICKS_PER_S) / _TICKS_PER_S)


def layer_prompt_times(
    cost: CostModel, layer: LayerSizes, hot: HotShare, batch_tokens: int, *, has_attention: bool
) -> _Float:
    """Predict one layer for many candidates of hot neurons at once, per token of a full batch.

    A layer on the GPU is read once per batch. Its cold neurons are sent to it once per batch, or
    computed by the CPU for each token, whichever is faster. A layer on the CPU is read whole,
    `_BATCH_GAIN` times faster than for a token alone.

    Returns:
        f64[n], seconds in multiples of 2^-44.
    """
    host = layer.host_reads
    cold_count = hot.num_neurons - hot.count
    if not has_attention:
        neuron_bytes = host.idle_bytes + host.active_bytes
        whole_bytes = neuron_bytes * hot.num_neurons + host.down_bytes
        neurons_bytes = whole_bytes * hot.asked_total / hot.num_neurons
        read_s = (host.attention_bytes + neurons_bytes) / cost.cpu.read_bytes_per_s
        return rounded_s(np.full_like(hot.count, read_s / _BATCH_GAIN))
    held_bytes = layer.attention_bytes + layer.neuron_bytes * hot.num_neurons
    read_s = held_bytes / cost.gpu.read_bytes_per_s / batch_tokens
    send_s = layer.neuron_bytes * cold_count / cost.transfer_bytes_per_s / batch_tokens
    return rounded_s(read_s + np.minimum(send_s, cold_neurons_s(cost, layer, hot)))


def prompt_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Predict the seconds of one prompt token in a full batch."""
    batch_tokens = problem.batch_tokens
    times = [
        layer_prompt_times(
            problem.cost,
            problem.sizes.layers[number],
            hot_share(problem, plan, number),
            batch_tokens,
            has_attention=placement.has_attention,
        )
        for number, placement in enumerate(plan.layers)
    ]
    return math.fsum(float(layer[0]) for layer in times)


def token_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Return the cost of a plan: a decode step and the prompt tokens per decoded token.

    Raises:
        PlacementError: the plan is of a model of another shape.
    """
    return step_s(problem, plan) + problem.prompt_tokens * prompt_s(problem, plan)
