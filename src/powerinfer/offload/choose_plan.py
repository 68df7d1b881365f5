"""Choice of the plan for a model: the named one, the stored one, or a new one."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from powerinfer.errors import PlacementError
from powerinfer.offload.plan_files import find_plan, read_plan
from powerinfer.offload.problem import PlacementTask
from powerinfer.options.options import EngineOptions
from powerinfer.placement import gpu_index
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solvers import BudgetPoint, get_solver, sweep
from powerinfer.placement.step_time import step_s, timed_plan
from powerinfer.store.memory import format_bytes

__all__ = [
    "ChosenPlan",
    "budget_ladder",
    "choose_plan",
    "index_beside",
    "solve_plan",
    "without_neurons",
]

DEFAULT_SOLVER = "latency"

# Budgets of the ladder, as shares of the whole model's size.
_LADDER = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True)
class ChosenPlan:
    """A plan and its origin.

    Attributes:
        plan: has its predicted time.
        source: a clause that says where it comes from.
    """

    plan: PlacementPlan
    source: str
    is_solved: bool = False


def choose_plan(task: PlacementTask, options: EngineOptions) -> ChosenPlan:
    """Choose the plan the options ask for, or by default the CPU alone if that is faster.

    Raises:
        PlacementError: the named plan is damaged, belongs to another model, or exceeds the budget.
        UnsupportedError: there is no such solver.
    """
    if options.gpu_index is not None:
        return _named(task, options.gpu_index)
    if options.disable_gpu_index:
        return ChosenPlan(without_neurons(task.problem), "no neurons, as requested")
    chosen = _stored_or_solved(task, options)
    return chosen if options.wants_gpu else _faster(task.problem, chosen)


def _stored_or_solved(task: PlacementTask, options: EngineOptions) -> ChosenPlan:
    solver = options.solver or DEFAULT_SOLVER
    if not options.reset_gpu_index:
        stored = find_plan(task.file, task.problem, solver)
        if stored is not None:
            plan, path = stored
            return ChosenPlan(plan, f"{plan.solver}, stored in {path.name}")
    return solve_plan(task.problem, solver)


def _faster(problem: PlacementProblem, chosen: ChosenPlan) -> ChosenPlan:
    """Replace a plan by the empty one if the CPU alone takes no longer for a decode step.

    Plans also weigh prompts and memory, but nobody wants a GPU that makes decoding slower.
    """
    plan = chosen.plan
    nowhere = LayerPlacement(has_attention=False, has_predictor=False, hot=np.empty(0, np.int32))
    layers = [nowhere] * len(plan.layers)
    nothing = timed_plan(problem, plan.solver, plan.budget_bytes, layers, has_output=False)
    if step_s(problem, plan) < step_s(problem, nothing):
        return chosen
    return ChosenPlan(nothing, "the CPU alone is predicted to be faster")


def _named(task: PlacementTask, path: Path) -> ChosenPlan:
    problem = task.problem
    # The current budget counts, not the one the plan was made for.
    plan = replace(read_plan(path, problem), budget_bytes=problem.budget_bytes)
    needed = problem.sizes.placed_bytes(plan)
    if needed > problem.budget_bytes:
        raise PlacementError(
            f"{path}: this plan takes {format_bytes(needed)} of GPU memory at this context, the "
            f"budget is {format_bytes(problem.budget_bytes)}",
            remedy="give a larger {vram_budget}, a smaller context ({context_length}), or leave "
            "{gpu_index} out to solve for a new one",
        )
    return ChosenPlan(replace(plan, predicted_s=step_s(problem, plan)), f"named: {path}")


def solve_plan(problem: PlacementProblem, solver_name: str) -> ChosenPlan:
    """Solve the problem and note how long it took."""
    solver = get_solver(solver_name)
    started = time.perf_counter()
    plan = solver.solve(problem)
    seconds = time.perf_counter() - started
    source = f"solved by {solver.name} in {seconds:.2f} s: {solver.summary}"
    return ChosenPlan(plan, source, is_solved=True)


def without_neurons(problem: PlacementProblem) -> PlacementPlan:
    """Place attention from the first layer on while it fits, then the output head; no neurons."""
    sizes = problem.sizes
    left = problem.budget_bytes - sizes.overhead_bytes
    nothing = np.empty(0, np.int32)
    layers = []
    for layer in sizes.layers:
        needed = layer.attention_bytes + layer.kv_bytes
        fits = needed <= left
        # Layers after one that does not fit stay on the CPU too, even if they need no memory: each
        # change of device costs time.
        left = left - needed if fits else -1
        layers.append(LayerPlacement(has_attention=fits, has_predictor=False, hot=nothing))
    has_output = sizes.output_bytes <= left
    return timed_plan(problem, "none", problem.budget_bytes, layers, has_output=has_output)


def budget_ladder(task: PlacementTask, solver_name: str | None) -> list[BudgetPoint]:
    """Predict the speed for other budgets: nothing, tenths of the model, and the task's own."""
    problem = task.problem
    overhead = problem.sizes.overhead_bytes
    placed = problem.sizes.full_bytes - overhead
    rungs = (overhead + int(share * placed) for share in _LADDER)
    budgets = [0, problem.budget_bytes, *rungs]
    return sweep(problem, budgets, get_solver(solver_name or DEFAULT_SOLVER))


def index_beside(plan_path: Path) -> Path:
    """Path of PowerInfer's index for a plan: `MODEL.gguf.generated.gpuidx` by default."""
    name = plan_path.name
    for suffix in (".plan.json", ".json"):
        name = name.removesuffix(suffix)
    return gpu_index.beside(plan_path.with_name(name))
