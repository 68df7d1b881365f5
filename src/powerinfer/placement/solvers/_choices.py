"""Options for each part of a model, from which every solver chooses, and chains of choices.

Within a layer the hot neurons of a good plan are the most frequent ones, so the choice of a layer
is the place of its parts and the number of hot groups of neurons, by falling frequency. Chains do
not depend on the budget, so more memory only reaches further along them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import (
    MEMORY_WORTH,
    HotNeurons,
    output_s,
    rounded_s,
    run_s,
    timed_plan,
)
from powerinfer.values import IntArray

__all__ = [
    "GROUP",
    "Choices",
    "LayerOptions",
    "PartOptions",
    "Path",
    "grouped_order",
    "hull",
    "hull_path",
]


_Int = npt.NDArray[np.int64]
_Float = npt.NDArray[np.float64]

# Neurons placed together; the paper's batch ("Offline neuron placement").
GROUP = 64


@dataclass(frozen=True, slots=True)
class PartOptions:
    """Options for one part, a layer or the output head; the first puts nothing on the GPU.

    Attributes:
        held: i64[n], bytes of GPU memory.
        cost: f64[n], objective of the solver; sums are exact.
    """

    held: _Int
    cost: _Float


@dataclass(frozen=True, slots=True)
class LayerOptions:
    """Options for one layer.

    In this order: all on the CPU; attention on the GPU; with it the predictor, if there is one;
    with them 1, 2, ... groups of neurons.

    Attributes:
        order: i32[num_neurons], neurons by falling frequency.
        num_hot: i64[n], number of hot neurons.
        expected: f64[n], number of hot neurons firing for a token.
        first_group: option without groups; those after it have 1, 2, ... groups.
        timed: bytes and costs of the options.
    """

    order: IntArray
    num_hot: _Int
    expected: _Float
    first_group: int
    has_predictor: bool
    timed: PartOptions

    @classmethod
    def of(cls, problem: PlacementProblem, number: int) -> "LayerOptions":
        """List the options for layer `number`."""
        sizes, num_experts = problem.sizes.layers[number], problem.sizes.num_experts
        frequency, has_predictor = problem.stats.rounded(number), sizes.predictor_bytes > 0
        order = grouped_order(problem.stats.order(number), frequency, num_experts)
        most_hot = 0 if sizes.is_handed else problem.sizes.num_neurons
        first_group = 2 if has_predictor else 1
        groups = np.minimum(np.arange(GROUP, most_hot + GROUP, GROUP), most_hot)
        num_hot = np.concatenate([np.zeros(first_group + 1, np.int64), groups])
        option = np.arange(len(num_hot))
        held = np.where(option >= 1, sizes.attention_bytes + sizes.kv_bytes, 0)
        held += np.where(option >= first_group, sizes.predictor_bytes, 0)
        held += num_hot * sizes.neuron_bytes
        hot = HotNeurons.first_of(problem, number, order, num_hot)
        step = np.select(
            [option == 0, option < first_group],
            [
                hot.step_s(has_attention=False, has_predictor=False),
                hot.step_s(has_attention=True, has_predictor=False),
            ],
            hot.step_s(has_attention=True, has_predictor=has_predictor),
        )
        prompt = hot.prompt_s(has_attention=True)
        prompt[0] = hot.prompt_s(has_attention=False)[0]
        cost = step + rounded_s(problem.prompt_tokens * prompt)
        timed = PartOptions(held, cost)
        return cls(order, num_hot, hot.expected, first_group, has_predictor, timed)

    def placement(self, option: int) -> LayerPlacement:
        """Return the placement of an option."""
        has_predictor = self.has_predictor and option >= self.first_group
        return LayerPlacement(
            option >= 1, has_predictor, np.sort(self.order[: self.num_hot[option]])
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
        self.layers = tuple(LayerOptions.of(problem, n) for n in range(len(sizes.layers)))
        head = [output_s(problem, on_gpu=on_gpu) for on_gpu in (False, True)]
        held = np.array([0, sizes.output_bytes], np.int64)
        timed = (*(layer.timed for layer in self.layers), PartOptions(held, np.array(head)))
        # Seconds that a byte on the GPU is worth, the same for every budget. All bytes together are
        # worth `MEMORY_WORTH` of the least cost, so no plan chosen for its bytes costs more than
        # that share above the best.
        most_bytes = sum(int(part.held.max()) for part in timed)
        least_s = sum(float(part.cost.min()) for part in timed)
        self.byte_s = MEMORY_WORTH * least_s / most_bytes if most_bytes else 0.0
        self.parts = tuple(
            PartOptions(part.held, np.subtract(part.cost, rounded_s(part.held * self.byte_s)))
            for part in timed
        )

    @property
    def nothing(self) -> list[int]:
        """Choice of the empty plan."""
        return [0] * len(self.parts)

    def capacity(self, budget_bytes: int) -> int:
        """Return the bytes a budget leaves for parts; negative if not even the overhead fits."""
        return budget_bytes - self.problem.sizes.overhead_bytes

    def path(self, steps: Sequence[tuple[int, int]]) -> "Path":
        """Walk steps, parts and their new options, from the empty plan."""
        part, option = np.array(steps, np.int64).T
        return Path.walk(self.parts, np.array(self.nothing), part, option)

    def plan(self, solver: str, budget_bytes: int, choice: Sequence[int]) -> PlacementPlan:
        """Turn a choice into a plan with its predicted time."""
        pairs = zip(self.layers, choice[:-1], strict=True)
        layers = [layer.placement(option) for layer, option in pairs]
        return timed_plan(self.problem, solver, budget_bytes, layers, has_output=choice[-1] == 1)


def grouped_order(order: IntArray, frequency: _Float, num_experts: int) -> IntArray:
    """Order neurons, i32[num_neurons], such that groups never span two experts.

    Neurons of an expert are grouped by falling frequency, which is their `order`, and groups are
    ordered by their total frequency. The last group of an expert may be smaller; such groups come
    last, so that every full one begins at a multiple of `GROUP`.
    """
    if num_experts == 1:
        return order
    expert_size = len(order) // num_experts
    by_expert = order[np.argsort(order // expert_size, kind="stable")].reshape(num_experts, -1)
    num_full = expert_size // GROUP * GROUP
    full = by_expert[:, :num_full].reshape(-1, GROUP)
    falling = np.argsort(-frequency[full].sum(axis=1), kind="stable")
    return np.concatenate([full[falling].reshape(-1), by_expert[:, num_full:].reshape(-1)])


@dataclass(frozen=True, slots=True)
class Path:
    """A chain of choices: each step gives one part another option.

    Attributes:
        start: i64[parts], the choice before the first step.
        part: i64[steps], which part a step changes.
        option: i64[steps], its new option.
        before: i64[steps], its option before.
        held: i64[steps + 1], bytes before each step and after the last; they do not fall.
        cost: f64[steps + 1], cost before each step and after the last.
    """

    start: _Int
    part: _Int
    option: _Int
    before: _Int
    held: _Int
    cost: _Float

    def last_within(self, capacity: int) -> int:
        """Return the number of steps that fit."""
        return int(np.searchsorted(self.held, capacity, side="right")) - 1

    def best_within(self, capacity: int) -> int:
        """Return the smallest number of steps with the least cost that fits."""
        return int(np.argmin(self.cost[: self.last_within(capacity) + 1]))

    def choice(self, steps: int) -> list[int]:
        """Return the option of each part after `steps` steps."""
        chosen: list[int] = self.start.tolist()
        # A later step of a part overwrites an earlier one.
        for part, option in zip(self.part[:steps], self.option[:steps], strict=True):
            chosen[part] = int(option)
        return chosen

    @classmethod
    def walk(cls, parts: Sequence[PartOptions], start: _Int, part: _Int, option: _Int) -> "Path":
        """Add up bytes and costs along the steps; exact, as costs are multiples of a fraction."""
        before = np.empty(len(part), np.int64)
        held, cost = np.zeros(len(part) + 1, np.int64), np.zeros(len(part) + 1)
        for number, options in enumerate(parts):
            mine = np.flatnonzero(part == number)
            chain = np.concatenate([start[number : number + 1], option[mine]])
            before[mine] = chain[:-1]
            held[0] += options.held[chain[0]]
            cost[0] += options.cost[chain[0]]
            held[mine + 1], cost[mine + 1] = (
                np.diff(options.held[chain]),
                np.diff(options.cost[chain]),
            )
        return cls(start, part, option, before, np.cumsum(held), np.cumsum(cost))


def hull(options: PartOptions) -> _Int:
    """Return the options on the lower convex hull of cost over bytes, down to the cheapest.

    Returns:
        i64[k], k >= 1: with rising bytes, falling cost and falling gain per byte.
    """
    order = np.lexsort((options.cost, options.held))
    cost = options.cost[order]
    least_before = np.minimum.accumulate(np.concatenate([[np.inf], cost[:-1]]))
    chain: list[int] = []
    for index in order[cost < least_before].tolist():
        while len(chain) >= 2 and _gain(options, chain[-1], index) >= _gain(options, *chain[-2:]):
            chain.pop()
        chain.append(index)
    return np.array(chain, np.int64)


def hull_path(parts: Sequence[PartOptions]) -> Path:
    """Walk down all hulls at once, always taking the step with the largest gain per byte.

    Each choice on the way is optimal for its bytes (the relaxed knapsack's optimum).
    """
    hulls = [hull(options) for options in parts]
    start = np.array([chain[0] for chain in hulls], np.int64)
    part = np.repeat(np.arange(len(hulls)), [len(chain) - 1 for chain in hulls])
    option = np.concatenate([chain[1:] for chain in hulls])
    # Rounding must not let a step overtake its predecessor in the same part.
    gains = [
        np.minimum.accumulate([_gain(options, *pair) for pair in pairwise(chain)])
        for options, chain in zip(parts, hulls, strict=True)
        if len(chain) > 1
    ]
    order = np.argsort(-np.concatenate(gains), kind="stable") if gains else np.arange(0)
    return Path.walk(parts, start, part[order], option[order])


def _gain(options: PartOptions, before: int, after: int) -> float:
    """Return the cost saved per additional byte; `after` takes strictly more bytes."""
    saved = options.cost[before] - options.cost[after]
    return float(saved / (options.held[after] - options.held[before]))
