"""Where plans are stored, and when a stored plan is used instead of solving again.

A plan is stored beside its model. For the model in the package, or if the folder is not writable,
it is stored in the user's cache folder. Without a plan, PowerInfer's GPU index beside the model is
used if `powerinfer plan` wrote it; an index from another program is used only if it is named.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from powerinfer.calibration.files import is_packaged
from powerinfer.errors import PlacementError
from powerinfer.gguf import GGUFFile
from powerinfer.placement import gpu_index
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.plan_json import PLAN
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import num_runs, step_s
from powerinfer.store.cached_models import remember_model

__all__ = [
    "StoredPlan",
    "find_plan",
    "read_plan",
    "save_plan",
    "write_plan",
]

_INDEX_MAGICS = (b"PWRI", b"GGUF")
# How far a stored plan may be from what would be solved for now.
_BUDGET_TOLERANCE = 0.01
_TIME_TOLERANCE = 0.05
_UNUSED_SHARE = 0.02

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan with the file it comes from.

    Attributes:
        plan: of the model.
        path: of the file.
        warning: what speaks against using it; None for nothing.
    """

    plan: PlacementPlan
    path: Path
    warning: str | None = None


def find_plan(file: GGUFFile, problem: PlacementProblem, solver: str) -> StoredPlan | None:
    """A stored plan that solving again would not improve; None where there is none.

    That is a plan of the same model and solver whose budget is the same within 1 %, that fits the
    budget, and whose predicted speed is what was predicted when it was made, within 5 %: else
    something else has changed, such as the context, the predictors or the machine. Its layers on
    the GPU must be one run. An index of ours must fit the budget. Neither may leave more than 2 %
    of what the budget has for the model free, or anything out where everything fits. (PowerInfer
    goes on using any index that fits, however small.)

    Args:
        file: of the model.
        problem: that would be solved.
        solver: that would solve it.
    """
    index = gpu_index.beside(file.path)
    for path in (PLAN.beside(file.path), PLAN.cached(problem.model_identity), index):
        if not os.path.lexists(path) or (path == index and not gpu_index.is_our_index(path)):
            continue
        try:
            found = read_plan(path, problem)
        except PlacementError as error:
            _log.warning("%s (solving the placement again)", error)
            continue
        if _is_as_good(found.plan, problem, solver):
            return found
    return None


def read_plan(path: Path, problem: PlacementProblem) -> StoredPlan:
    """Read a plan, or a GPU index in PowerInfer's format, for a model.

    Args:
        path: of the file.
        problem: the model; its budget is not looked at.

    Raises:
        PlacementError: it is damaged, or made for a model of another identity or shape, or for
            another choice of predictors.
    """
    if _is_index(path):
        stored = _read_index(path, problem)
    else:
        stored = StoredPlan(PLAN.read(path, problem.model_identity), path)
    problem.sizes.check_shape(stored.plan)
    _check_predictors(stored, problem)
    return stored


def save_plan(file: GGUFFile, plan: PlacementPlan) -> Path:
    """Store a plan beside its model or, where that is not possible, in the cache.

    Args:
        file: of the model.
        plan: of the model.

    Returns:
        Where it is now.

    Raises:
        PlacementError: neither can be written.
    """
    is_beside = not is_packaged(file.path)
    path = PLAN.save(file.path, plan, identity=plan.model_identity, may_lie_beside=is_beside)
    if path != PLAN.beside(file.path):
        remember_model(file.path, plan.model_identity)
    return path


def write_plan(path: Path, plan: PlacementPlan) -> Path:
    """Write a plan to a file that the user named; return its path.

    Raises:
        PlacementError: there is a file that is no plan, or it cannot be written.
    """
    PLAN.check_target(path)
    return PLAN.write(path, plan)


def _is_index(path: Path) -> bool:
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(4) in _INDEX_MAGICS
    except OSError:
        return False  # reading it as a plan says what is wrong


def _read_index(path: Path, problem: PlacementProblem) -> StoredPlan:
    index = gpu_index.read_gpu_index(
        path,
        num_layers=len(problem.sizes.layers),
        num_neurons=problem.sizes.num_neurons,
        model_identity=problem.model_identity,
    )
    plan = index.plan(problem.model_identity, problem.budget_bytes, _has_predictor(problem))
    return StoredPlan(plan, path, index.warning)


def _has_predictor(problem: PlacementProblem) -> list[bool]:
    return [layer.predictor_bytes > 0 for layer in problem.sizes.layers]


def _check_predictors(stored: StoredPlan, problem: PlacementProblem) -> None:
    """Hot neurons need their predictor on the GPU, where there is one."""
    pairs = zip(stored.plan.layers, _has_predictor(problem), strict=True)
    for number, (layer, has_predictor) in enumerate(pairs):
        is_missing = has_predictor and not layer.has_predictor and len(layer.hot)
        if is_missing or (layer.has_predictor and not has_predictor):
            raise PlacementError(
                f"{stored.path}: this plan was made for other predictors: layer {number} "
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
    if num_runs(plan) > 1:  # of a version whose plans were not
        return False
    if plan.solver != solver or abs(plan.budget_bytes - budget) > _BUDGET_TOLERANCE * budget:
        return False
    before = plan.predicted_s
    return before is not None and abs(step_s(problem, plan) - before) <= _TIME_TOLERANCE * before
