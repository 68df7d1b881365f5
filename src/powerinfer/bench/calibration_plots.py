"""Plots of a calibration; matplotlib is imported here alone, and only when plots are drawn."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer._extras import how_to_install
from powerinfer.errors import UnsupportedError
from powerinfer.predictors.calibration import Calibration, Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["check_plotting", "draw_plots"]

DoubleArray: TypeAlias = npt.NDArray[np.float64]

_SIZE_INCHES = (7.0, 4.5)
_HOT = 0.8


def check_plotting() -> None:
    """Check that plots can be drawn.

    Raises:
        UnsupportedError: matplotlib is not installed; says how to get it.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise UnsupportedError(
            "plots need matplotlib, which is not installed",
            remedy=f"{how_to_install('plot')}, or leave {{plots}} out",
        )


def draw_plots(calibration: Calibration, folder: Path) -> list[Path]:
    """Draw three plots as PNG files: activation frequency, sparsity per layer, recall by density.

    Args:
        calibration: what to draw.
        folder: made if it does not exist.

    Returns:
        The files, in this order.

    Raises:
        UnsupportedError: matplotlib is not installed.
        OSError: a file cannot be written.
    """
    check_plotting()
    folder.mkdir(parents=True, exist_ok=True)
    drawings: dict[str, Callable[[Calibration, Axes], None]] = {
        "activation-frequency.png": _draw_frequency,
        "sparsity-per-layer.png": _draw_layers,
        "recall-by-density.png": _draw_recall,
    }
    return [_draw(calibration, draw, folder / name) for name, draw in drawings.items()]


def _draw(
    calibration: Calibration, draw: Callable[[Calibration, "Axes"], None], path: Path
) -> Path:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot there is no window system and no global state.
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(calibration, axes)
    axes.grid(visible=True, alpha=0.3)
    figure.savefig(path, dpi=120)
    return path


def _draw_frequency(calibration: Calibration, axes: "Axes") -> None:
    """Share of the activations that the hottest neurons make, one line per layer and the mean."""
    shares = []
    for layer in calibration.layers:
        counts = np.sort(layer.num_active)[::-1].astype(np.float64)
        reached = np.cumsum(counts) / max(1.0, counts.sum())
        shares.append(reached)
        neurons = np.arange(1, len(counts) + 1) / len(counts)
        axes.plot(100 * neurons, 100 * reached, color="tab:gray", alpha=0.4, linewidth=0.8)
    hot = float(np.mean([layer.hot_share(_HOT) for layer in calibration.layers]))
    axes.plot(100 * neurons, 100 * np.mean(shares, axis=0), color="tab:blue", label="all layers")
    axes.axhline(100 * _HOT, color="tab:red", linestyle=":", linewidth=1)
    axes.axvline(
        100 * hot,
        color="tab:red",
        linestyle=":",
        linewidth=1,
        label=f"{100 * hot:.0f} % of the neurons make {100 * _HOT:.0f} % of the activations",
    )
    axes.set_xlabel("neurons, most often active first (%)")
    axes.set_ylabel("share of all activations (%)")
    axes.legend(loc="lower right")


def _draw_layers(calibration: Calibration, axes: "Axes") -> None:
    """Active and predicted share of every layer."""
    numbers = range(len(calibration.layers))
    active = [100 * calibration.active_share(number) for number in numbers]
    points = [layer.chosen_point for layer in calibration.layers]
    predicted = [100.0 if point is None else 100 * point.density for point in points]
    axes.bar(numbers, active, color="tab:blue", label="active")
    axes.step(numbers, predicted, where="mid", color="tab:orange", label="computed (gate)")
    axes.set_xlabel("layer")
    axes.set_ylabel("neurons (%)")
    axes.set_ylim(0, 105)
    axes.legend()


def _draw_recall(calibration: Calibration, axes: "Axes") -> None:
    """For each kind the mean over the layers of the density that a recall needs."""
    recalls = np.linspace(0.8, 0.999, 60)
    for kind in calibration.layers[0].curves:
        curves = [layer.curves[kind] for layer in calibration.layers if kind in layer.curves]
        densities = np.mean([_density_for(curve, recalls) for curve in curves], axis=0)
        axes.plot(100 * densities, 100 * recalls, label=kind)
    active = np.mean([calibration.active_share(n) for n in range(len(calibration.layers))])
    axes.axvline(float(100 * active), color="tab:gray", linestyle=":", label="active")
    axes.set_xlabel("density: neurons predicted (%), mean over layers")
    axes.set_ylabel("recall: active neurons found (%)")
    axes.legend()


def _density_for(curve: Curve, recalls: DoubleArray) -> DoubleArray:
    """Density at which a curve reaches each recall, between its points by straight lines.

    NaN, which is not drawn, for recalls below those that were measured.
    """
    recall, density = zip(*sorted((point.recall, point.density) for point in curve), strict=True)
    densities: DoubleArray = np.interp(recalls, recall, density, left=np.nan)
    return densities
