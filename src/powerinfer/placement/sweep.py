"""Plans for a ladder of memory budgets, which show the gain from more memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solver import Solver
from powerinfer.placement.token_time import MEMORY_WORTH, token_s

__all__ = ["BudgetPoint", "sweep"]


@dataclass(frozen=True, slots=True)
class BudgetPoint:
    """Plan for one budget of the ladder.

    Attributes:
        step_s: predicted seconds of one decode step.
        covered_share: share of the expected activations on the GPU.
    """

    budget_bytes: int
    plan: PlacementPlan
    step_s: float
    covered_share: float


def sweep(problem: PlacementProblem, budgets: Sequence[int], solver: Solver) -> list[BudgetPoint]:
    """Solve for several budgets.

    A plan that fits less memory fits more too. Where a solver does worse with more memory, as those
    that do not minimise time may, the previous plan is kept: the cost of a plan, decode step and
    prompt tokens, never rises by more than `MEMORY_WORTH`.

    Args:
        problem: the problem; its own budget is ignored.
        budgets: budgets in bytes, in any order.

    Returns:
        One point per different budget, ascending.
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
