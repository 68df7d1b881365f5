"""Options for each part of a model, from which every solver chooses.

Within a layer the hot neurons of a good plan are the most frequent ones, so the choice of a layer
is the place of its parts and the number of hot groups of neurons, by falling frequency.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.placement.experts import grouped_order
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import HotShare, layer_times, output_s, rounded_s, run_s, step_s
from powerinfer.placement.token_time import MEMORY_WORTH, layer_prompt_times

__all__ = ["GROUP", "Choices", "LayerOptions", "PartOptions"]

# Neurons placed together; the paper's batch ("Offline neuron placement").
GROUP = 64


@dataclass(frozen=True, slots=True)
class PartOptions:
    """Options for one part, a layer or the output head; the first puts nothing on the GPU.

    Attributes:
        held: i64[n], bytes of GPU memory.
        cost: f64[n], objective of the solver; sums are exact.
    """

    held: npt.NDArray[np.int64]
    cost: npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Options for one layer.

    In this order: all on the CPU; attention on the GPU; with it the predictor, if there is one;
    with them 1, 2, ... groups of neurons.

    Attributes:
        order: i32[num_neurons], neurons by falling frequency.
        num_hot: i64[n], number of hot neurons.
        expected: f64[n], number of hot neurons firing for a token.
        asked: f64[n], number of hot neurons checked for a token.
        first_group: option without groups; those after it have 1, 2, ... groups.
    """

    order: npt.NDArray[np.int32]
    num_hot: npt.NDArray[np.int64]
    expected: npt.NDArray[np.float64]
    asked: npt.NDArray[np.float64]
    first_group: int
    has_predictor: bool

    def placement(self, option: int) -> LayerPlacement:
        """Return the placement of an option."""
        hot = np.sort(self.order[: self.num_hot[option]])
        return LayerPlacement(
            has_attention=option >= 1,
            has_predictor=self.has_predictor and option >= self.first_group,
            hot=hot,
        )


class Choices:
    """Options of every part of a model; a choice is one option per part, the head's last.

    The cost of an option is its time in a decode step and the prompt tokens per decoded token,
    minus the worth of the memory it holds. Each run of layers on the GPU costs `run_s` as well.
    """

    def __init__(self, problem: PlacementProblem) -> None:
        self.problem = problem
        self.run_s = run_s(problem)
        sizes = problem.sizes
        self.layers = tuple(_layer_options(problem, n) for n in range(len(sizes.layers)))
        timed = [_timed(problem, n, layer) for n, layer in enumerate(self.layers)]
        head = [output_s(problem, on_gpu=on_gpu) for on_gpu in (False, True)]
        held = np.array([0, sizes.output_bytes], np.int64)
        parts = (*timed, PartOptions(held, np.array(head)))
        self.byte_s = _worth_of_a_byte(parts)
        self.parts = tuple(
            PartOptions(part.held, np.subtract(part.cost, _worth(part.held, self.byte_s)))
            for part in parts
        )

    @property
    def nothing(self) -> list[int]:
        """Choice of the empty plan."""
        return [0] * len(self.parts)

    @property
    def everything(self) -> list[int]:
        """Choice of the plan with the whole model on the GPU."""
        return [len(part.held) - 1 for part in self.parts]

    @property
    def cost_of_nothing(self) -> float:
        """Cost of the empty plan."""
        return sum(float(part.cost[0]) for part in self.parts)

    def capacity(self, budget_bytes: int) -> int:
        """Return the bytes a budget leaves for parts; negative if not even the overhead fits."""
        return budget_bytes - self.problem.sizes.overhead_bytes

    def plan(self, solver: str, budget_bytes: int, choice: Sequence[int]) -> PlacementPlan:
        """Turn a choice into a plan with its predicted time."""
        pairs = zip(self.layers, choice[:-1], strict=True)
        plan = PlacementPlan(
            model_identity=self.problem.model_identity,
            solver=solver,
            budget_bytes=budget_bytes,
            num_neurons=self.problem.sizes.num_neurons,
            has_output=choice[-1] == 1,
            layers=tuple(layer.placement(option) for layer, option in pairs),
        )
        return replace(plan, predicted_s=step_s(self.problem, plan))


def _layer_options(problem: PlacementProblem, number: int) -> LayerOptions:
    num_neurons = problem.sizes.num_neurons
    has_predictor = problem.sizes.layers[number].predictor_bytes > 0
    frequency, num_experts = problem.stats.rounded(number), problem.sizes.num_experts
    order = grouped_order(problem.stats.order(number), frequency, num_experts, GROUP)
    most_hot = 0 if problem.sizes.layers[number].is_handed else num_neurons
    groups = np.minimum(np.arange(GROUP, most_hot + GROUP, GROUP), most_hot)
    first_group = 2 if has_predictor else 1
    num_hot = np.concatenate([np.zeros(first_group + 1, np.int64), groups.astype(np.int64)])
    expected, asked = (
        np.concatenate([[0.0], np.cumsum(each[order])])[num_hot]
        for each in (frequency, problem.asked(number))
    )
    return LayerOptions(order, num_hot, expected, asked, first_group, has_predictor)


def _timed(problem: PlacementProblem, number: int, layer: LayerOptions) -> PartOptions:
    sizes = problem.sizes.layers[number]
    option = np.arange(len(layer.num_hot))
    held = np.where(option >= 1, sizes.attention_bytes + sizes.kv_bytes, 0)
    held += np.where(option >= layer.first_group, sizes.predictor_bytes, 0)
    held += layer.num_hot * sizes.neuron_bytes
    cost = np.empty(len(option))
    # Options 0, 1 and 2 differ in where attention and predictor lie, the rest as 2 in hot neurons.
    starts = [0, 1, layer.first_group] if layer.has_predictor else [0, 1]
    for start, stop in zip(starts, [*starts[1:], len(option)], strict=True):
        chosen = slice(start, stop)
        hot = HotShare(
            layer.num_hot[chosen].astype(np.float64),
            layer.expected[chosen],
            problem.sizes.num_neurons,
            float(problem.stats.rounded(number).sum()),
            layer.asked[chosen],
            float(problem.asked(number).sum()),
        )
        step = layer_times(
            problem.cost,
            sizes,
            hot,
            is_parallel=problem.sizes.is_parallel,
            has_attention=start >= 1,
            has_predictor=layer.has_predictor and start >= layer.first_group,
        )[2]
        batch_tokens = problem.workload.batch_tokens
        prompt = layer_prompt_times(
            problem.cost, sizes, hot, batch_tokens, has_attention=start >= 1
        )
        cost[chosen] = step + rounded_s(problem.workload.prompt_tokens * prompt)
    return PartOptions(held.astype(np.int64), cost)


def _worth(held: npt.NDArray[np.int64], byte_s: float) -> npt.NDArray[np.float64]:
    return rounded_s(held.astype(np.float64) * byte_s)


def _worth_of_a_byte(parts: Sequence[PartOptions]) -> float:
    """Return the seconds that a byte on the GPU is worth, the same for every budget.

    All bytes together are worth `MEMORY_WORTH` of the least cost, so no plan chosen for its bytes
    costs more than that share above the best.
    """
    most_bytes = sum(int(part.held.max()) for part in parts)
    least_s = sum(float(part.cost.min()) for part in parts)
    return MEMORY_WORTH * least_s / most_bytes if most_bytes else 0.0
