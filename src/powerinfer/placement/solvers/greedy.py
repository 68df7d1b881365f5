"""PowerInfer's order: dense parts one class after another, then the most frequent neurons.

Attention and key-value cache of every layer from the first, then predictors, then the output head,
then groups of neurons of all layers by falling frequency, up to the first that does not fit.
"""

from collections.abc import Callable

import numpy as np

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solvers import Solver
from powerinfer.placement.solvers._choices import Choices, Path

__all__ = ["SOLVER", "dense_steps", "greedy_path"]


def dense_steps(choices: Choices) -> list[tuple[int, int]]:
    """Return the steps before the first neuron: parts and their new options."""
    layers = choices.layers
    attention = [(number, 1) for number in range(len(layers))]
    predictors = [(n, layer.first_group) for n, layer in enumerate(layers) if layer.has_predictor]
    return [*attention, *predictors, (len(layers), 1)]


def greedy_path(choices: Choices) -> Path:
    """Return the plans of this solver, from the empty one to everything."""
    steps, frequencies = [], []
    for number, layer in enumerate(choices.layers):
        first = layer.first_group
        steps += [(number, option) for option in range(first + 1, len(layer.num_hot))]
        frequencies.append(np.diff(layer.expected[first:]) / np.diff(layer.num_hot[first:]))
    order = np.argsort(-np.concatenate(frequencies), kind="stable")
    return choices.path([*dense_steps(choices), *(steps[index] for index in order)])


def _prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
    choices = Choices(problem)
    path = greedy_path(choices)

    def plan(budget_bytes: int) -> PlacementPlan:
        capacity = choices.capacity(budget_bytes)
        steps = path.last_within(capacity) if capacity >= 0 else 0
        return choices.plan(SOLVER.name, budget_bytes, path.choice(steps))

    return plan


SOLVER = Solver("greedy", "PowerInfer's order: attention, predictors, head, neurons", _prepare)
