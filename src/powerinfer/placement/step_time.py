"""How long one decode step takes by a plan: bytes over measured speeds, layer by layer.

Paper: "Offline neuron placement" (arXiv 2312.12456).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.sizes import LayerSizes

__all__ = ["HotShare", "LayerTime", "layer_time", "layer_times", "output_s", "step_s"]

_Float = npt.NDArray[np.float64]

# Multiples of 2^-44 s (57 fs) add up exactly in f64 to 512 s, so that a step has one predicted
# time in whatever order it was added up, and comparing two plans never hangs on rounding.
_TICKS_PER_S = float(1 << 44)


@dataclass(frozen=True, slots=True)
class HotShare:
    """Candidates for a layer's hot neurons, as counts.

    Attributes:
        count: f64[n], how many neurons are hot.
        expected: f64[n], how many of them fire for a token: the sum of their frequencies.
        num_neurons: of the layer.
        expected_total: of the whole layer.
    """

    count: _Float
    expected: _Float
    num_neurons: int
    expected_total: float


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Predicted seconds of one layer in one decode step of one token.

    Attributes:
        gpu_s: the GPU computes.
        cpu_s: the CPU computes.
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

    Attention and FFN follow each other, or in a parallel layer run beside each other. The CPU
    starts on the cold neurons when the predictor is done, wherever that lies. While anything is on
    the GPU the stream of activations is there, so what the CPU computes (attention, cold neurons)
    costs a hand-off each; a parallel layer wholly on the CPU costs one.

    Returns:
        f64[n] each: seconds of the GPU, of the CPU, and of the whole layer; the last, and that of
        a layer wholly on the CPU, in multiples of 2^-44.
    """
    gpu, cpu, host = cost.gpu, cost.cpu, layer.host_reads
    cold_count = hot.num_neurons - hot.count
    hot_s = gpu.neurons_s(hot.count, hot.expected, layer.idle_bytes, layer.active_bytes)
    cold_s = cpu.neurons_s(
        cold_count, hot.expected_total - hot.expected, host.idle_bytes, host.active_bytes
    )
    cold_s = cold_s + np.where(cold_count > 0, host.down_bytes / cpu.read_bytes_per_s, 0.0)
    attention_bytes = layer.attention_bytes if has_attention else host.attention_bytes
    attention_s = (gpu if has_attention else cpu).part_s(attention_bytes + layer.kv_read_bytes)
    if has_predictor:
        first_s = gpu.part_s(layer.predictor_bytes)
    else:
        first_s = 0.0
        cold_s = cold_s + np.where(cold_count > 0, cpu.part_s(host.predictor_bytes), 0.0)
    away_s = np.where(cold_count > 0, cost.handoff_s + cold_s, 0.0)
    if not has_attention:
        computed = attention_s + cold_s
        total = computed + cost.handoff_s * (1 if is_parallel else 2)
        return np.zeros_like(total), _exact(computed), _exact(total)
    if is_parallel:
        total = first_s + np.maximum(attention_s + hot_s, away_s)
    else:
        total = attention_s + first_s + np.maximum(hot_s, away_s)
    return attention_s + first_s + hot_s, cold_s, _exact(total)


def output_s(problem: PlacementProblem, *, on_gpu: bool) -> float:
    """Predicted seconds of the output head and its norm, in multiples of 2^-44.

    On the CPU it costs a hand-off: the stream is on the GPU.
    """
    cost = problem.cost
    if on_gpu:
        return float(_exact(np.float64(cost.gpu.part_s(problem.sizes.output_bytes))))
    return float(_exact(np.float64(_host_output_s(problem) + cost.handoff_s)))


def layer_time(problem: PlacementProblem, plan: PlacementPlan, number: int) -> LayerTime:
    """Predict one layer of a plan that has something on the GPU.

    Raises:
        IndexError: there is no such layer.
    """
    placement = plan.layers[number]
    frequency = problem.stats.rounded(number)
    hot = HotShare(
        np.array([len(placement.hot)], np.float64),
        np.array([frequency[placement.hot].sum()], np.float64),
        problem.sizes.num_neurons,
        float(frequency.sum()),
    )
    times = layer_times(
        problem.cost,
        problem.sizes.layers[number],
        hot,
        is_parallel=problem.sizes.is_parallel,
        has_attention=placement.has_attention,
        has_predictor=placement.has_predictor,
    )
    return LayerTime(*(float(part[0]) for part in times))


def step_s(problem: PlacementProblem, plan: PlacementPlan) -> float:
    """Predicted seconds of one decode step of one token.

    A plan with nothing on the GPU is the CPU's alone and hands nothing over.

    Raises:
        PlacementError: the plan is of a model of another shape.
    """
    problem.sizes.check_shape(plan)
    layers = [layer_time(problem, plan, number) for number in range(len(plan.layers))]
    if not plan.has_anything:
        # Rounded layer by layer too: it must not come out slower than with hand-offs that cost 0.
        return math.fsum([layer.cpu_s for layer in layers] + [_host_output_s(problem)])
    totals = [layer.total_s for layer in layers]
    return math.fsum([*totals, output_s(problem, on_gpu=plan.has_output)])


def _host_output_s(problem: PlacementProblem) -> float:
    sizes = problem.sizes
    head = sizes.output_bytes if sizes.host_output_bytes is None else sizes.host_output_bytes
    return float(_exact(np.float64(problem.cost.cpu.part_s(head))))


def _exact(seconds: _Float | np.float64) -> _Float:
    return np.asarray(np.rint(seconds * _TICKS_PER_S) / _TICKS_PER_S)
