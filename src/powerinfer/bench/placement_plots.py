"""Plots of a placement: neurons on the GPU, and predictions for other memory budgets."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from powerinfer.bench.figures import BLUE, GRAY, GREEN, ORANGE, Drawing, draw_all, frame_layers
from powerinfer.errors import PlacementError
from powerinfer.placement.plan import PlacementPlan
from powerinfer.placement.solvers import BudgetPoint
from powerinfer.store.memory import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_placement_plots"]

_MIB, _GIB = 1 << 20, 1 << 30


def draw_placement_plots(
    plan: PlacementPlan, points: Sequence[BudgetPoint], folder: Path, facts: Sequence[str]
) -> list[Path]:
    """Draw three plots, each as PNG and SVG, and return the files in this order.

    `gpu-neurons-per-layer`, `covered-activations-by-budget`, `predicted-speed-by-budget`.
    """
    about = (
        *facts,
        f"{len(plan.layers)} layers of {plan.num_neurons} neurons",
        f"solver {plan.solver}",
    )
    drawings = [
        Drawing(
            "gpu-neurons-per-layer",
            f"Neurons on the GPU, with {format_bytes(plan.budget_bytes)}",
            partial(_draw_layers, plan),
        ),
        Drawing(
            "covered-activations-by-budget",
            "Activations on the GPU, by budget",
            partial(_draw_covered, plan, points),
        ),
        Drawing(
            "predicted-speed-by-budget",
            "Predicted decode speed, by budget",
            partial(_draw_speed, plan, points),
        ),
    ]
    return draw_all(drawings, folder, about, error=PlacementError)


def _draw_layers(plan: PlacementPlan, axes: "Axes") -> None:
    """Bars for each layer's neurons on the GPU; marks for layers with attention on the CPU."""
    numbers = range(len(plan.layers))
    shares = [100 * len(layer.hot) / plan.num_neurons for layer in plan.layers]
    axes.bar(numbers, shares, width=0.7, color=BLUE, label="neurons on the GPU")
    away = [number for number in numbers if not plan.layers[number].has_attention]
    if away:
        label = "attention on the CPU"
        axes.plot(away, [0.0] * len(away), "x", color=ORANGE, clip_on=False, label=label)
    frame_layers(axes, len(plan.layers), max(shares))


def _draw_covered(plan: PlacementPlan, points: Sequence[BudgetPoint], axes: "Axes") -> None:
    shares = [100 * point.covered_share for point in points if point.budget_bytes]
    axes.set_ylabel("expected activations on the GPU (%)")
    axes.set_ylim(-3, 106)
    _draw_by_budget(plan, points, axes, shares, BLUE)


def _draw_speed(plan: PlacementPlan, points: Sequence[BudgetPoint], axes: "Axes") -> None:
    speeds = [1 / point.step_s for point in points if point.budget_bytes]
    alone = [1 / point.step_s for point in points if not point.budget_bytes]
    axes.set_ylabel("predicted decode speed (tokens/s)")
    axes.set_ylim(0, 1.1 * max([*speeds, *alone]))
    _draw_by_budget(plan, points, axes, speeds, GREEN, alone)


def _draw_by_budget(
    plan: PlacementPlan,
    points: Sequence[BudgetPoint],
    axes: "Axes",
    values: Sequence[float],
    color: str,
    speeds_alone: Sequence[float] = (),
) -> None:
    """Plot a value for each budget that is not zero, and mark the budget of the plan."""
    budgets = [point.budget_bytes for point in points if point.budget_bytes]
    is_large = max([plan.budget_bytes, *budgets]) >= 2 * _GIB
    name, num_bytes = ("GiB", _GIB) if is_large else ("MiB", _MIB)
    shown = [budget / num_bytes for budget in budgets]
    axes.plot(shown, values, "o-", color=color, label="a plan for each budget")
    for speed in speeds_alone:
        label = f"the CPU alone, {speed:.3g} tokens/s"
        axes.axhline(speed, color=GRAY, linestyle="--", label=label)
    label = f"this plan, {format_bytes(plan.budget_bytes)}"
    axes.axvline(plan.budget_bytes / num_bytes, color=ORANGE, linestyle=":", label=label)
    axes.set_xlabel(f"GPU memory for everything ({name})")
    axes.ticklabel_format(axis="x", useOffset=False)
    axes.legend(loc="best")
