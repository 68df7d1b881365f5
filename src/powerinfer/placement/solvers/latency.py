"""The plan of least cost: a decode step and the prompt tokens per decoded token.

A run of layers on the GPU is recorded as one graph with a fixed cost, so plans have only one:
layers on the CPU, layers on the GPU, layers on the CPU, and the output head on either, any of them
empty. The candidates are the empty plan, PowerInfer's order as far as it fits, and for each run of
layers the relaxed optimum, filled up. None of them costs more with more memory, so neither does
the best. A whole model that fits is placed if it is about as good.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solver import Solver
from powerinfer.placement.solvers._choices import Choices, PartOptions, hull_path, previous_options
from powerinfer.placement.solvers.greedy import greedy_path
from powerinfer.placement.step_time import MEMORY_WORTH, token_s

__all__ = ["SOLVER", "RunChoices"]


_Int = npt.NDArray[np.int64]

# Groups of 64 neurons: enough to make room for the missing parts of a layer of 70B.
_MOST_TAKEN_BACK = 1024
_MOST_FILLED = 8


@dataclass(frozen=True, slots=True)
class _Window:
    """Range of layers on the GPU, with the smallest option of each.

    Attributes:
        first: first layer on the GPU.
        stop: end of the range; `first` if only the head is on the GPU.
        has_output: the output head is on the GPU.
        held: bytes of GPU memory.
        cost: cost of the whole plan.
        least: lower bound on the cost of any plan of this window, however much memory there is.
    """

    first: int
    stop: int
    has_output: bool
    held: int
    cost: float
    least: float


@dataclass(frozen=True, slots=True)
class _Found:
    """A choice: steps of a window, then another option for one part, if it is not 0."""

    cost: float
    window: _Window
    steps: _Int
    part: int = 0
    option: int = 0


class RunChoices:
    """Chains of growing choices, one for each window of layers.

    Within a window the parts of all layers grow by the steps with the largest gain per byte. After
    each step the choice is optimal for its bytes (the relaxed knapsack's optimum). Between two
    steps, one of the parts that change next uses the memory left, and may take back some of the
    last steps of the others to complete a layer. So more memory never costs more.

    Over 40 budgets each of ReluLLaMA 7B and 13B, Llama 70B, Falcon-40B and Bamboo-7B, in F16 and
    Q4_0, with an RTX 4090 and an H200, no choice costs more than 0.19 % above the bound of the
    relaxed problem, except 7B Q4_0 with the H200: there a table of all budgets for each window
    (dynamic programming over 32768 cells, which takes seconds) found at most 0.23 % less.
    """

    def __init__(self, choices: Choices) -> None:
        self._parts = choices.parts
        placed = [PartOptions(part.held[1:], part.cost[1:]) for part in choices.parts[:-1]]
        path = hull_path(placed)
        self._start = path.start + 1
        self._part, self._option = path.part, path.option + 1
        self._held, self._cost = np.diff(path.held), np.diff(path.cost)
        before = previous_options(path.start, path.part, path.option)
        predicted = np.array([layer.first_group for layer in choices.layers])[self._part]
        self._is_leap = (path.option - before > 1) | (self._option <= predicted)
        self._windows = sorted(self._list_windows(choices.run_s), key=lambda window: window.least)

    def best(self, capacity: int) -> tuple[float, list[int]] | None:
        """Return the least cost within `capacity` bytes and the option of each part, or None."""
        best: _Found | None = None
        for window in self._windows:
            if best is not None and window.least >= best.cost:
                break
            if window.held <= capacity:
                found = self._grown(window, capacity, np.inf if best is None else best.cost)
                if best is None or (found is not None and found.cost < best.cost):
                    best = found
        return None if best is None else (best.cost, self._choice(best))

    def _list_windows(self, run_s: float) -> list[_Window]:
        layers, head = self._parts[:-1], self._parts[-1]
        held = [int(part.held[option]) for part, option in zip(layers, self._start, strict=True)]
        cost = [float(part.cost[option]) for part, option in zip(layers, self._start, strict=True)]
        least = [float(part.cost[1:].min()) for part in layers]
        away = [float(part.cost[0]) for part in layers]
        windows = []
        for first, stop, has_output in _ranges(len(layers)):
            # The head is on the GPU only after a layer that is, or alone.
            num_runs = int(first < stop or has_output)
            outside = sum(away[:first]) + sum(away[stop:])
            outside += float(head.cost[int(has_output)]) + num_runs * run_s
            windows.append(
                _Window(
                    first,
                    stop,
                    has_output,
                    sum(held[first:stop]) + int(head.held[int(has_output)]),
                    sum(cost[first:stop]) + outside,
                    sum(least[first:stop]) + outside,
                )
            )
        return windows

    def _grown(self, window: _Window, capacity: int, known: float) -> _Found | None:
        """Return the best choice of a window that fits; None if it costs at least `known`."""
        inside = np.flatnonzero((self._part >= window.first) & (self._part < window.stop))
        held = window.held + np.cumsum(self._held[inside])
        count = int(np.searchsorted(held, capacity, side="right"))
        steps = inside[:count]
        cost = window.cost + float(self._cost[steps].sum())
        if count == len(inside):
            return _Found(cost, window, steps)
        following = int(inside[count])
        left = capacity - (int(held[count - 1]) if count else window.held)
        if cost + float(self._cost[following]) * left / int(self._held[following]) >= known:
            return None
        found = _Found(cost, window, steps)
        later = self._part[inside[count:]]
        _, places = np.unique(later, return_index=True)
        parts = later[np.sort(places)[:_MOST_FILLED]]
        filled = [
            self._filled(found, int(part), left, keeps_leaps=keeps_leaps)
            for part in parts
            for keeps_leaps in (False, True)
        ]
        continued = self._continued(found, inside[count:], left)
        return min([continued, *filled], key=lambda each: each.cost)

    def _continued(self, found: _Found, later: _Int, left: int) -> _Found:
        """Continue along the chain without leaps, and without later steps of their parts."""
        first_leap = np.full(len(self._parts), len(self._part))
        leaps = later[self._is_leap[later]][::-1]
        first_leap[self._part[leaps]] = leaps
        later = later[later < first_leap[self._part[later]]]
        count = int(np.searchsorted(np.cumsum(self._held[later]), left, side="right"))
        more = later[:count]
        cost = found.cost + float(self._cost[more].sum())
        return replace(found, cost=cost, steps=np.concatenate([found.steps, more]))

    def _filled(self, found: _Found, part: int, left: int, *, keeps_leaps: bool) -> _Found:
        """Give a part its best option, taking back steps of other parts where that pays.

        Leaps are steps of more than a group of neurons: a predictor, the rest of a layer.
        """
        options, steps = self._parts[part], found.steps
        is_own = self._part[steps] == part
        own = self._option[steps[is_own]]
        now = int(own[-1]) if len(own) else int(self._start[part])
        others = steps[~is_own]
        if keeps_leaps:
            last_leap = np.full(len(self._parts), -1)
            leaps = others[self._is_leap[others]]
            last_leap[self._part[leaps]] = leaps
            others = others[others > last_leap[self._part[others]]]
        others = others[::-1][:_MOST_TAKEN_BACK]
        # After taking back none, one, two, ... steps of the others:
        room = int(options.held[now]) + left + np.cumsum([0, *self._held[others]])
        dearer = np.cumsum([0.0, *-self._cost[others]])
        order = np.argsort(options.held[1:], kind="stable") + 1
        cost = options.cost[order]
        least = np.minimum.accumulate(cost)
        fitting = np.searchsorted(options.held[order], room, side="right") - 1
        total = dearer + least[fitting]
        taken_back = int(np.argmin(total))
        option = int(order[np.argmax(cost == least[fitting[taken_back]])])
        change = float(total[taken_back]) - float(options.cost[now])
        kept = np.setdiff1d(steps, others[:taken_back], assume_unique=True)
        return _Found(found.cost + change, found.window, kept, part, option)

    def _choice(self, found: _Found) -> list[int]:
        window = found.window
        choice = [0] * len(self._parts)
        for number in range(window.first, window.stop):
            choice[number] = int(self._start[number])
        # A later step of a part overwrites an earlier one.
        for step in found.steps:
            choice[int(self._part[step])] = int(self._option[step])
        if found.option:
            choice[found.part] = found.option
        choice[-1] = int(window.has_output)
        return choice


def _ranges(number: int) -> list[tuple[int, int, bool]]:
    """List windows: first layer on the GPU, end, and whether the head is on the GPU."""
    firsts = range(number)
    windows = [(first, stop, False) for first in firsts for stop in range(first + 1, number + 1)]
    return [*windows, *((first, number, True) for first in range(number + 1))]


def _prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
    choices = Choices(problem)
    runs, path = RunChoices(choices), greedy_path(choices)
    everything_s = token_s(problem, choices.plan(SOLVER.name, 0, choices.everything))
    nothing = (choices.cost_of_nothing, choices.nothing)

    def plan(budget_bytes: int) -> PlacementPlan:
        capacity = choices.capacity(budget_bytes)
        candidates = [nothing]
        if capacity >= 0:
            grown = runs.best(capacity)
            if grown is not None:
                candidates.append(grown)
            steps = path.best_within(capacity)
            # Its layers on the GPU begin with the first, and the head follows all of them.
            cost = float(path.cost[steps]) + (choices.run_s if steps else 0.0)
            candidates.append((cost, path.choice(steps)))
        # The first of equals, so that no part is on the GPU without a gain.
        _, chosen = min(candidates, key=lambda candidate: candidate[0])
        found = choices.plan(SOLVER.name, budget_bytes, chosen)
        most_s = (1 + MEMORY_WORTH) * token_s(problem, found)
        if budget_bytes >= problem.sizes.full_bytes and everything_s <= most_s:
            return choices.plan(SOLVER.name, budget_bytes, choices.everything)
        return found

    return plan


SOLVER = Solver("latency", "the shortest predicted time of a token", _prepare)
