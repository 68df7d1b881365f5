"""The plan of least cost: a decode step and the prompt tokens per decoded token.

Its layers on the GPU are one run. The candidates are the empty plan, PowerInfer's order as far as
it fits, and for each run of layers the relaxed optimum, filled up. None of them costs more with
more memory, so neither does the best. A whole model that fits is placed if it is about as good.
"""

from collections.abc import Callable

from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.placement.solver import Solver
from powerinfer.placement.solvers._choices import Choices
from powerinfer.placement.solvers._runs import RunChoices
from powerinfer.placement.solvers.greedy import greedy_path
from powerinfer.placement.token_time import MEMORY_WORTH, token_s

__all__ = ["SOLVER"]


def _prepare(problem: PlacementProblem) -> Callable[[int], PlacementPlan]:
    choices = Choices(problem)
    runs, path = RunChoices(choices), greedy_path(choices)
    everything_s = token_s(problem, choices.plan(SOLVER.name, 0, choices.everything))
    nothing = (choices.cost_of_nothing, choices.nothing)

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
            return choices.plan(SOLVER.name, budget_bytes, choices.everything)
        return found

    return plan


SOLVER = Solver("latency", "the shortest predicted time of a token", _prepare)
