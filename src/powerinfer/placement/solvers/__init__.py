"""Placement solvers: each file is one, and its name is the solver's name (`--solver`).

Here are the type that the files export, its look-up by name, and plans for many budgets.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from powerinfer import _plugins
from powerinfer._extras import how_to_install
from powerinfer.errors import PlacementError
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.step_time import MEMORY_WORTH, token_s

__all__ = ["BudgetPoint", "Solver", "get_solver", "sweep"]


@dataclass(frozen=True, slots=True)
class Solver:
    """A method of choosing a plan.

    Attributes:
        summary: one line for users.
        prepare: ``prepare(problem)`` returns a function from a budget, up to the problem's, to a
            plan that fits it, with `predicted_s` filled in. It is deterministic, and the plan is
            empty if not even the overhead fits.
    """

    name: str
    summary: str
    prepare: Callable[[PlacementProblem], Callable[[int], PlacementPlan]]

    def solve(self, problem: PlacementProblem) -> PlacementPlan:
        """Make a plan for the problem's budget; an empty one where nothing fits."""
        return self.prepare(problem)(problem.budget_bytes)


def get_solver(name: str) -> Solver:
    """Return the solver of this name.

    Raises:
        UnsupportedError: the name is unknown; lists the known ones.
        PlacementError: it needs a library that is not installed.
    """
    try:
        found = _plugins.load(__name__, name, "SOLVER", what="placement solver")
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "powerinfer"):
            raise
        raise PlacementError(
            f"the placement solver {name} needs {library}, which is not installed; "
            f"{how_to_install('cuda')}"
        ) from None
    if not isinstance(found, Solver):
        raise TypeError(f"{__name__}.{name}.SOLVER is a {type(found).__name__}")
    return found


@dataclass(frozen=True, slots=True)
class BudgetPoint:
    """Plan for one budget of the ladder, and the share of the expected activations on the GPU."""

    budget_bytes: int
    plan: PlacementPlan
    step_s: float
    covered_share: float


def sweep(problem: PlacementProblem, budgets: Sequence[int], solver: Solver) -> list[BudgetPoint]:
    """Solve for several budgets.

    A plan that fits less memory fits more too. Where a solver does worse with more memory, as those
    that do not minimise time may, the previous plan is kept: the cost of a plan, decode step and
    prompt tokens, never rises by more than `MEMORY_WORTH`.

    Returns:
        One point per different budget in bytes, ascending; that of the problem is ignored.
    """
    ladder = sorted(set(budgets))
    if not ladder:
        return []
    solve = solver.prepare(replace(problem, budget_bytes=ladder[-1]))
    points: list[BudgetPoint] = []
    least = math.inf
    for budget in ladder:
        plan = solve(budget)
        cost = token_s(problem, plan)
        if least * (1 + MEMORY_WORTH) < cost:
            plan = replace(points[-1].plan, budget_bytes=budget)
        least = min(least, token_s(problem, plan))
        share = problem.stats.covered_share(plan)
        points.append(BudgetPoint(budget, plan, plan.predicted_s or 0.0, share))
    return points
