"""What is compared with what: the sides of the benchmark of CPU and GPU together, as plans.

a  this engine: the solver's plan, predictors, sparse operators on both devices.
b  layers as a whole on the GPU, the others on the CPU, all neurons computed: what layer offload
   (`-ngl`) does.
c  all that is not FFN on the GPU, every FFN on the CPU without predictors: every gate, then the
   neurons that fire.
d  this engine with no hot neurons: predictors on the GPU, all active neurons on the CPU.
e  this engine with everything on the GPU, the CPU idle: the solver may give it a few cold neurons.

All run on the same kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import ModelSizes, PlacementProblem
from powerinfer.placement.solvers import get_solver

__all__ = ["SIDES", "Side", "plan_of"]


@dataclass(frozen=True)
class Side:
    """One way to run a model.

    Attributes:
        name: letter, for the table.
        summary: for people.
        sparsity: `--sparsity` of the model; None: its predictors.
        plan: from the problem, with the budget in it, to where everything goes.
    """

    name: str
    summary: str
    sparsity: str | None
    plan: Callable[[PlacementProblem], PlacementPlan]


def plan_of(side: Side, problem: PlacementProblem) -> PlacementPlan:
    """The plan of a side within the problem's budget."""
    return side.plan(problem)


def _solved(problem: PlacementProblem) -> PlacementPlan:
    return get_solver("latency").solve(problem)


def _layer_offload(problem: PlacementProblem) -> PlacementPlan:
    """As many whole layers as fit, then the output head if it still does."""
    sizes = problem.sizes
    free = problem.budget_bytes - sizes.overhead_bytes
    count = 0
    for layer in sizes.layers:
        whole = layer.attention_bytes + layer.kv_bytes + layer.neuron_bytes * sizes.num_neurons
        if whole > free:
            break
        free -= whole
        count += 1
    every = np.arange(sizes.num_neurons, dtype=np.int32)
    layers = tuple(
        _layer(every if number < count else every[:0], has_attention=number < count)
        for number in range(len(sizes.layers))
    )
    return _plan(problem, "layers", layers, has_output=sizes.output_bytes <= free)


def _without_ffn(problem: PlacementProblem) -> PlacementPlan:
    nothing = np.empty(0, np.int32)
    layers = tuple(_layer(nothing, has_attention=True) for _ in problem.sizes.layers)
    return _plan(problem, "without FFN", layers, has_output=True)


def _nothing_hot(problem: PlacementProblem) -> PlacementPlan:
    nothing = np.empty(0, np.int32)
    layers = tuple(
        LayerPlacement(
            has_attention=True, has_predictor=_has_predictor(problem.sizes, number), hot=nothing
        )
        for number in range(len(problem.sizes.layers))
    )
    return _plan(problem, "nothing hot", layers, has_output=True)


def _everything(problem: PlacementProblem) -> PlacementPlan:
    every = np.arange(problem.sizes.num_neurons, dtype=np.int32)
    layers = tuple(
        LayerPlacement(
            has_attention=True, has_predictor=_has_predictor(problem.sizes, number), hot=every
        )
        for number in range(len(problem.sizes.layers))
    )
    return _plan(problem, "everything", layers, has_output=True)


def _has_predictor(sizes: ModelSizes, number: int) -> bool:
    return sizes.layers[number].predictor_bytes > 0


def _layer(hot: np.ndarray, *, has_attention: bool) -> LayerPlacement:
    return LayerPlacement(has_attention=has_attention, has_predictor=False, hot=hot)


def _plan(
    problem: PlacementProblem, name: str, layers: tuple[LayerPlacement, ...], *, has_output: bool
) -> PlacementPlan:
    return PlacementPlan(
        model_identity="",
        solver=name,
        budget_bytes=problem.budget_bytes,
        num_neurons=problem.sizes.num_neurons,
        has_output=has_output,
        layers=layers,
    )


SIDES = {
    "a": Side("a", "this engine", sparsity=None, plan=_solved),
    "b": Side("b", "whole layers on the GPU, dense", sparsity="off", plan=_layer_offload),
    "c": Side("c", "every FFN on the CPU, exact", sparsity="exact", plan=_without_ffn),
    "d": Side("d", "this engine, no hot neurons", sparsity=None, plan=_nothing_hot),
    "e": Side("e", "this engine, all on the GPU", sparsity=None, plan=_everything),
}
