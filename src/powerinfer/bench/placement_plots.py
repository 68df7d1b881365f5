"""Plots of a placement; matplotlib is imported when they are drawn."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from powerinfer.bench.calibration_plots import check_plotting
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.sweep import BudgetPoint

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_placement_plots"]

_SIZE_INCHES = (7.0, 4.5)
_GIB = 1 << 30


def draw_placement_plots(
    plan: PlacementPlan, points: Sequence[BudgetPoint], folder: Path
) -> list[Path]:
    """Draw neurons per layer, covered activations by budget, predicted tokens/s by budget.

    Args:
        plan: whose layers are drawn.
        points: predictions for several budgets, ascending.
        folder: made if it does not exist.

    Returns:
        The PNG files, in this order.

    Raises:
        UnsupportedError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    check_plotting()
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, Callable[[Axes], None]] = {
        "gpu-neurons-per-layer.png": lambda axes: _draw_layers(plan, axes),
        "covered-activations-by-budget.png": lambda axes: _draw_covered(plan, points, axes),
        "predicted-speed-by-budget.png": lambda axes: _draw_speed(plan, points, axes),
    }
    return [_draw(draw, folder / name) for name, draw in drawings.items()]


def _draw(draw: Callable[["Axes"], None], path: Path) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot there is no window system and no global state.
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=120)
    return path


def _draw_layers(plan: PlacementPlan, axes: "Axes") -> None:
    """How many neurons of every layer are on the GPU; layers whose attention is not stand out."""
    numbers = range(len(plan.layers))
    shares = [100 * len(layer.hot) / plan.num_neurons for layer in plan.layers]
    axes.bar(numbers, shares, color="tab:blue", label="neurons on the GPU")
    away = [number for number in numbers if not plan.layers[number].has_attention]
    if away:
        axes.plot(away, [0.0] * len(away), "x", color="tab:red", label="attention on the CPU")
    axes.set_xlabel("layer")
    axes.set_ylabel(f"of {plan.num_neurons} neurons (%)")
    axes.set_ylim(0, 105)
    axes.set_title(f"{plan.solver}, {plan.budget_bytes / _GIB:.2f} GiB")
    axes.legend()


def _draw_covered(plan: PlacementPlan, points: Sequence[BudgetPoint], axes: "Axes") -> None:
    budgets = [point.budget_bytes / _GIB for point in points]
    axes.plot(
        budgets, [100 * point.covered_share for point in points], marker="o", color="tab:blue"
    )
    _mark_budget(plan, axes)
    axes.set_xlabel("GPU memory (GiB)")
    axes.set_ylabel("expected activations on the GPU (%)")
    axes.set_ylim(-2, 105)
    axes.legend()


def _draw_speed(plan: PlacementPlan, points: Sequence[BudgetPoint], axes: "Axes") -> None:
    budgets = [point.budget_bytes / _GIB for point in points]
    axes.plot(budgets, [1 / point.step_s for point in points], marker="o", color="tab:green")
    _mark_budget(plan, axes)
    axes.set_xlabel("GPU memory (GiB)")
    axes.set_ylabel("predicted decode speed (tokens/s)")
    axes.set_ylim(bottom=0)
    axes.legend()


def _mark_budget(plan: PlacementPlan, axes: "Axes") -> None:
    budget = plan.budget_bytes / _GIB
    axes.axvline(budget, color="tab:red", linestyle=":", label=f"this plan, {budget:.2f} GiB")
