"""The type that files in ``solvers/`` export, and its look-up by name."""

from collections.abc import Callable
from dataclasses import dataclass

from powerinfer import _plugins
from powerinfer._extras import how_to_install
from powerinfer.errors import PlacementError
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.problem import PlacementProblem

__all__ = ["Solver", "get_solver"]

_PACKAGE = "powerinfer.placement.solvers"


@dataclass(frozen=True, slots=True)
class Solver:
    """A method of choosing a plan.

    Attributes:
        name: key of its file.
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
        found = _plugins.load(_PACKAGE, name, "SOLVER", what="placement solver")
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in ("", "powerinfer"):
            raise
        raise PlacementError(
            f"the placement solver {name} needs {library}, which is not installed; "
            f"{how_to_install('cuda')}"
        ) from None
    if not isinstance(found, Solver):
        raise TypeError(f"{_PACKAGE}.{name}.SOLVER is a {type(found).__name__}")
    return found
