"""The plan of least cost: a decode step and the prompt tokens per decoded token.

A run of layers on the GPU is recorded as one graph with a fixed cost, so plans have only one:
layers on the CPU, layers on the GPU, layers on the CPU, and the output head on either, any of them
empty. The candidates are the empty plan, PowerInfer's order as far as it fits, and for each run of
layers the relaxed optimum, filled up. None of them costs more with more memory, so neither does
the best. A whole model that fits is placed if it is about as good.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solvers import Solver
from powerinfer.placement.solvers._choices import Choices, PartOptions, hull_path
from powerinfer.placement.solvers.greedy import greedy_path
from powerinfer.placement.step_time import MEMORY_WORTH, token_s

__all__ = ["SOLVER", "RunChoices"]

_Int = npt.NDArray[np.int64]
_Found = tuple[float, _Int]
"""A cost, and the option of each part."""

# Groups of 64 neurons: enough to make room for the missing parts of a layer of 70B.
_MOST_TAKEN_BACK = 1024
_MOST_FILLED = 8


class _Window(NamedTuple):
    """Range of layers on the GPU, with the smallest option of each.

    Attributes:
        is_on: bool[parts], which layers, and whether the head, are on the GPU.
        held: bytes of GPU memory.
        cost: cost of the whole plan.
        least: lower bound on the cost of any plan of this window, however much memory there is.
    """

    is_on: npt.NDArray[np.bool_]
    held: int
    cost: float
    least: float


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
        path = hull_path([PartOptions(part.held[1:], part.cost[1:]) for part in self._parts[:-1]])
        # Without their first option, layers are on the GPU.
        self._start, self._part = np.append(path.start + 1, 1), path.part
        self._option, self._before = path.option + 1, path.before + 1
        self._held, self._cost = np.diff(path.held), np.diff(path.cost)
        predicted = np.array([layer.first_group for layer in choices.layers])[self._part]
        # Steps of more than a group of neurons: a predictor, the rest of a layer.
        self._is_leap = (self._option - self._before > 1) | (self._option <= predicted)
        self._windows = sorted(self._list_windows(choices.run_s), key=lambda window: window.least)

    def best(self, capacity: int) -> tuple[float, list[int]] | None:
        """Return the least cost within `capacity` bytes and the option of each part, or None."""
        best: _Found | None = None
        for window in self._windows:
            if best is not None and window.least >= best[0]:
                break
            if window.held <= capacity:
                found = self._grown(window, capacity, np.inf if best is None else best[0])
                if best is None or (found is not None and found[0] < best[0]):
                    best = found
        return None if best is None else (best[0], best[1].tolist())

    def _list_windows(self, run_s: float) -> list[_Window]:
        number = len(self._parts) - 1
        firsts = range(number)
        ranges = [(first, stop, False) for first in firsts for stop in range(first + 1, number + 1)]
        # The head is on the GPU only after a layer that is, or alone.
        ranges += [(first, number, True) for first in range(number + 1)]
        pairs = list(zip(self._parts, self._start, strict=True))
        held = np.array([part.held[option] for part, option in pairs])
        cost = np.array([part.cost[option] for part, option in pairs])
        least = np.array([part.cost[1:].min() for part in self._parts])
        away = np.array([part.cost[0] for part in self._parts])
        windows = []
        for first, stop, has_output in ranges:
            is_on = np.zeros(number + 1, bool)
            is_on[first:stop], is_on[-1] = True, has_output
            costs = (run_s + float(np.where(is_on, each, away).sum()) for each in (cost, least))
            windows.append(_Window(is_on, int(held[is_on].sum()), *costs))
        return windows

    def _grown(self, window: _Window, capacity: int, known: float) -> _Found | None:
        """Return the best choice of a window that fits; None if it costs at least `known`."""
        inside = np.flatnonzero(window.is_on[self._part])
        held = window.held + np.cumsum(self._held[inside])
        count = int(np.searchsorted(held, capacity, side="right"))
        taken, later = inside[:count], inside[count:]
        cost = window.cost + float(self._cost[taken].sum())
        left = capacity - (int(held[count - 1]) if count else window.held)
        if len(later) and cost + self._cost[later[0]] * left / self._held[later[0]] >= known:
            return None
        choice = np.where(window.is_on, self._start, 0)
        # A later step of a part overwrites an earlier one.
        choice[self._part[taken]] = self._option[taken]
        found = (cost, choice)
        if not len(later):
            return found
        _, places = np.unique(self._part[later], return_index=True)
        filled = [
            self._filled(found, taken, part, left, keeps_leaps=keeps_leaps)
            for part in self._part[later[np.sort(places)[:_MOST_FILLED]]].tolist()
            for keeps_leaps in (False, True)
        ]
        return min([self._continued(found, later, left), *filled], key=lambda each: each[0])

    def _continued(self, found: _Found, later: _Int, left: int) -> _Found:
        """Continue along the chain without leaps, and without later steps of their parts."""
        first_leap = np.full(len(self._parts), len(self._part))
        leaps = later[self._is_leap[later]][::-1]
        first_leap[self._part[leaps]] = leaps
        later = later[later < first_leap[self._part[later]]]
        more = later[: np.searchsorted(np.cumsum(self._held[later]), left, side="right")]
        choice = found[1].copy()
        choice[self._part[more]] = self._option[more]
        return found[0] + float(self._cost[more].sum()), choice

    def _filled(
        self, found: _Found, taken: _Int, part: int, left: int, *, keeps_leaps: bool
    ) -> _Found:
        """Give a part its best option, taking back steps of other parts where that pays."""
        options, choice = self._parts[part], found[1].copy()
        others = taken[self._part[taken] != part]
        if keeps_leaps:
            last_leap = np.full(len(self._parts), -1)
            leaps = others[self._is_leap[others]]
            last_leap[self._part[leaps]] = leaps
            others = others[others > last_leap[self._part[others]]]
        others = others[::-1][:_MOST_TAKEN_BACK]
        # After taking back none, one, two, ... steps of the others:
        room = int(options.held[choice[part]]) + left + np.cumsum([0, *self._held[others]])
        dearer = np.cumsum([0.0, *-self._cost[others]])
        # Options of a layer take ever more bytes.
        fitting = np.searchsorted(options.held[1:], room, side="right")
        total = dearer + np.minimum.accumulate(options.cost[1:])[fitting - 1]
        taken_back = int(np.argmin(total))
        change = float(total[taken_back]) - float(options.cost[choice[part]])
        back = others[:taken_back]
        choice[self._part[back]] = self._before[back]
        choice[part] = 1 + np.argmin(options.cost[1 : 1 + fitting[taken_back]])
        return found[0] + change, choice


def _prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
    choices = Choices(problem)
    runs, path = RunChoices(choices), greedy_path(choices)
    everything = [len(part.held) - 1 for part in choices.parts]
    everything_s = token_s(problem, choices.plan(SOLVER.name, 0, everything))
    nothing = (sum(float(part.cost[0]) for part in choices.parts), choices.nothing)

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
            return choices.plan(SOLVER.name, budget_bytes, everything)
        return found

    return plan


SOLVER = Solver("latency", "the shortest predicted time of a token", _prepare)
