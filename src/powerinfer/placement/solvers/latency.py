"""The plan with the shortest predicted step: free to leave out anything, layer by layer.

A multiple-choice knapsack over the options of every layer. Each candidate below gets no slower with
more memory, so their best does not either: the empty plan, prefixes of PowerInfer's order, prefixes
of the relaxed optimum (exact in bytes), and the table of all budgets (rounded to cells of bytes,
exact on small models).
"""

from collections.abc import Callable

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solver import Solver
from powerinfer.placement.solvers._budget_table import BudgetTable
from powerinfer.placement.solvers._choices import Choices
from powerinfer.placement.solvers._paths import hull_path
from powerinfer.placement.solvers.greedy import greedy_path

__all__ = ["SOLVER"]


def _prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
    choices = Choices(problem)
    paths = (hull_path(choices.parts), greedy_path(choices))
    table = BudgetTable(choices.parts, max(0, choices.capacity(problem.budget_bytes)))
    nothing = choices.plan(SOLVER.name, 0, choices.nothing)

    def plan(budget_bytes: int) -> PlacementPlan:
        capacity = choices.capacity(budget_bytes)
        candidates = [(float(nothing.predicted_s or 0.0), choices.nothing)]
        if capacity >= 0:
            candidates.append(table.choice(capacity))
            for path in paths:
                steps = path.best_within(capacity)
                candidates.append((float(path.cost[steps]), path.choice(steps)))
        # The first of equals, so that nothing is on the GPU that gains nothing.
        _, chosen = min(candidates, key=lambda candidate: candidate[0])
        return choices.plan(SOLVER.name, budget_bytes, chosen)

    return plan


SOLVER = Solver("latency", "the shortest predicted decode step", _prepare)
