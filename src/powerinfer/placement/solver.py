"""What a placement solver gets and what a file in ``solvers/`` exports."""

from collections.abc import Callable
from dataclasses import dataclass

from powerinfer import _plugins
from powerinfer.errors import PlacementError
from powerinfer.placement.activation_stats import ActivationStats
from powerinfer.placement.cost_model import CostModel
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.sizes import ModelSizes

__all__ = ["PlacementProblem", "Solver", "get_solver"]

_PACKAGE = "powerinfer.placement.solvers"


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Everything a plan is made from.

    Attributes:
        model_identity: `gguf.model_identity` of the model; empty for a model from no file.
        sizes: of its parts.
        stats: how often its neurons fire.
        cost: how fast both devices are.
        budget_bytes: of GPU memory, for everything: overhead_bytes of the sizes and what is placed.
    """

    model_identity: str
    sizes: ModelSizes
    stats: ActivationStats
    cost: CostModel
    budget_bytes: int

    def __post_init__(self) -> None:
        """Check that the parts fit each other.

        Raises:
            PlacementError: the statistics are of a model of another shape, or the budget negative.
        """
        sizes, stats = self.sizes, self.stats
        if (stats.num_layers, stats.num_neurons) != (len(sizes.layers), sizes.num_neurons):
            raise PlacementError(
                f"activation statistics from {stats.source or 'nowhere'} are of {stats.num_layers} "
                f"layers of {stats.num_neurons} neurons, the model has {len(sizes.layers)} of "
                f"{sizes.num_neurons}; give those of this model"
            )
        if self.budget_bytes < 0:
            raise PlacementError(f"a memory budget of {self.budget_bytes} bytes is negative")


@dataclass(frozen=True, slots=True)
class Solver:
    """One way to choose a plan.

    Attributes:
        name: key of its file.
        summary: one line for users.
        prepare: ``prepare(problem)`` returns a function from a budget, up to the problem's, to a
            plan that fits it, the same for the same problem and budget, with `predicted_s` filled
            in. Where not even the overhead fits, the plan is empty.
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
        UnsupportedError: there is none; the message lists those there are.
    """
    found = _plugins.load(_PACKAGE, name, "SOLVER", what="placement solver")
    if not isinstance(found, Solver):
        raise TypeError(f"{_PACKAGE}.{name}.SOLVER is a {type(found).__name__}")
    return found
