"""PowerInfer's order: dense parts one class after another, then the most frequent neurons.

Attention and key-value cache of every layer from the first, then predictors, then the output head,
then groups of neurons of all layers by falling frequency, up to the first that does not fit.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solver import Solver
from powerinfer.placement.solvers._choices import Choices, Path

__all__ = ["SOLVER", "dense_steps", "greedy_path"]


def greedy_path(choices: Choices) -> Path:
    """Return the plans of this solver, from the empty one to everything."""
    part, option = dense_steps(choices)
    neuron_part, neuron_option = _neuron_steps(choices)
    return Path.walk(
        choices.parts,
        np.zeros(len(choices.parts), np.int64),
        np.concatenate([part, neuron_part]),
        np.concatenate([option, neuron_option]),
    )


def dense_steps(choices: Choices) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the steps before the first neuron: i64[n] parts and their new options, i64[n]."""
    layers = choices.layers
    attention = [(number, 1) for number in range(len(layers))]
    predictors = [(n, layer.first_group) for n, layer in enumerate(layers) if layer.has_predictor]
    steps = np.array([*attention, *predictors, (len(layers), 1)], np.int64)
    return steps[:, 0], steps[:, 1]


def _neuron_steps(choices: Choices) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    parts, options, frequencies = [], [], []
    for number, layer in enumerate(choices.layers):
        groups = slice(layer.first_group, None)
        size = np.diff(layer.num_hot[groups])
        parts.append(np.full(len(size), number))
        options.append(layer.first_group + 1 + np.arange(len(size)))
        frequencies.append(np.diff(layer.expected[groups]) / size)
    order = np.argsort(-np.concatenate(frequencies), kind="stable")
    return np.concatenate(parts)[order], np.concatenate(options)[order]


def _prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
    choices = Choices(problem)
    path = greedy_path(choices)

    def plan(budget_bytes: int) -> PlacementPlan:
        capacity = choices.capacity(budget_bytes)
        steps = path.last_within(capacity) if capacity >= 0 else 0
        return choices.plan(SOLVER.name, budget_bytes, path.choice(steps))

    return plan


SOLVER = Solver("greedy", "PowerInfer's order: attention, predictors, head, neurons", _prepare)
