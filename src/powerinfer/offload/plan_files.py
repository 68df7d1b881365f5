"""Storage of plans, and rules for using a stored plan instead of solving again.

A plan is stored next to its model, or in the user's cache folder for the bundled model and
read-only folders. Without a plan, PowerInfer's GPU index next to the model is used if `powerinfer
plan` wrote it; an index of another program only if it is named.
"""

import logging
import os
from pathlib import Path

from powerinfer.calibration.files import is_packaged
from powerinfer.errors import PlacementError
from powerinfer.gguf import GGUFFile
from powerinfer.placement import gpu_index
from powerinfer.placement.plan import PLAN, PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import num_runs, step_s
from powerinfer.store.cached_models import remember_model

__all__ = ["find_plan", "read_plan", "save_plan", "write_plan"]

_INDEX_MAGICS = (b"PWRI", b"GGUF")
# Maximum deviation of a stored plan from the one that would be solved now.
_BUDGET_TOLERANCE = 0.01
_TIME_TOLERANCE = 0.05
_UNUSED_SHARE = 0.02

_log = logging.getLogger(__name__)


def find_plan(
    file: GGUFFile, problem: PlacementProblem, solver: str
) -> tuple[PlacementPlan, Path] | None:
    """Find a stored plan that solving again would not improve, and its file; None without one.

    A plan qualifies if model and solver are the same, its budget is within 1 % of the current one,
    it fits, its GPU layers are one contiguous run, and its predicted speed is within 5 % of that at
    solving time. Otherwise something else has changed, such as context, predictors or machine. Our
    index must only fit the budget. Neither may leave more than 2 % of the model's budget unused, or
    leave anything out if everything fits. (PowerInfer keeps using any index that fits, however
    small.)
    """
    index = gpu_index.beside(file.path)
    for path in (PLAN.beside(file.path), PLAN.cached(problem.model_identity), index):
        if not os.path.lexists(path) or (path == index and not gpu_index.is_our_index(path)):
            continue
        try:
            plan = read_plan(path, problem)
        except PlacementError as error:
            _log.warning("%s (solving the placement again)", error)
            continue
        if _is_as_good(plan, problem, solver):
            return plan, path
    return None


def read_plan(path: Path, problem: PlacementProblem) -> PlacementPlan:
    """Read a plan or a GPU index in PowerInfer's format; the problem's budget is ignored.

    Raises:
        PlacementError: the file is damaged, or made for a model of another identity or shape, or
            for other predictors.
    """
    if _is_index(path):
        plan = gpu_index.read_gpu_index(path, problem)
    else:
        plan = PLAN.read(path, problem.model_identity)
    plan.check_shape(len(problem.sizes.layers), problem.sizes.num_neurons)
    _check_predictors(path, plan, problem)
    return plan


def save_plan(file: GGUFFile, plan: PlacementPlan) -> Path:
    """Store a plan next to its model or, if that is not possible, in the cache; return its path."""
    is_beside = not is_packaged(file.path)
    path = PLAN.save(file.path, plan, identity=plan.model_identity, may_lie_beside=is_beside)
    if path != PLAN.beside(file.path):
        remember_model(file.path, plan.model_identity)
    return path


def write_plan(path: Path, plan: PlacementPlan) -> Path:
    """Write a plan to a file named by the user and return its path."""
    PLAN.check_target(path)
    return PLAN.write(path, plan)


def _is_index(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) in _INDEX_MAGICS
    except OSError:
        return False  # reading it as a plan reports the problem


def _check_predictors(path: Path, plan: PlacementPlan, problem: PlacementProblem) -> None:
    """Check that layers with hot neurons have their predictor on the GPU, if they have one."""
    pairs = zip(plan.layers, problem.sizes.layers, strict=True)
    for number, (layer, sizes) in enumerate(pairs):
        has_predictor = sizes.predictor_bytes > 0
        is_missing = has_predictor and not layer.has_predictor and len(layer.hot)
        if is_missing or (layer.has_predictor and not has_predictor):
            raise PlacementError(
                f"{path}: this plan was made for other predictors: layer {number} "
                f"{'has' if has_predictor else 'has no'} predictor now; run `powerinfer plan` "
                "again"
            )


def _is_as_good(plan: PlacementPlan, problem: PlacementProblem, solver: str) -> bool:
    sizes, budget = problem.sizes, problem.budget_bytes
    taken, whole = sizes.placed_bytes(plan), sizes.full_bytes
    most_free = 0 if whole <= budget else _UNUSED_SHARE * (budget - sizes.overhead_bytes)
    if not 0 <= min(budget, whole) - taken <= most_free:
        return False
    if plan.solver == gpu_index.SOLVER:
        return True
    if num_runs(plan) > 1:  # from a version whose plans had several runs
        return False
    if plan.solver != solver or abs(plan.budget_bytes - budget) > _BUDGET_TOLERANCE * budget:
        return False
    before = plan.predicted_s
    return before is not None and abs(step_s(problem, plan) - before) <= _TIME_TOLERANCE * before
