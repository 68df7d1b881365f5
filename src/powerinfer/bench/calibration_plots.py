"""Plots of profiles and calibrations: how often neurons fire, what each predictor kind costs."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.bench.figures import (
    BLACK,
    BLUE,
    GRAY,
    GREEN,
    ORANGE,
    Drawing,
    draw_all,
    frame_layers,
)
from powerinfer.errors import CalibrationError, PowerInferError
from powerinfer.placement.activation_record import ActivationProfile
from powerinfer.predictors.calibration import Calibration, Curve, hot_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_plots", "draw_profile"]

DoubleArray: TypeAlias = npt.NDArray[np.float64]
DensityFor: TypeAlias = Callable[[Curve, DoubleArray], DoubleArray]

_PINK, _SKY, _YELLOW = "#cc79a7", "#56b4e9", "#e69f00"
# Fixed line styles per kind make plots of different runs comparable. Lines that may overlap others
# are dashed.
_LINES = {
    "lowbit:2": (BLUE, "-"),
    "lowbit:3": (ORANGE, "-"),
    "lowbit:4": (GREEN, "-"),
    "sign": (_PINK, "-"),
    "sign+lowbit:2": (_SKY, "--"),
    "mlp": (_YELLOW, "-"),
    "mlp:q8_0": (_YELLOW, "--"),
    "mlp:q4_0": (_YELLOW, "-."),
}
_OTHER_LINES = tuple(
    (color, line) for line in ("-.", ":") for color in (BLUE, ORANGE, GREEN, _PINK, _SKY)
)
_ERRORS = np.geomspace(1e-3, 0.2, 120)
_LEAST_ERROR = 1e-6
_RECALLS = np.linspace(0.5, 0.999, 120)
_HOT = 0.8


def draw_plots(calibration: Calibration, folder: Path, *, model: str) -> list[Path]:
    """Draw four plots, each as PNG and SVG, and return the files in this order.

    `activation-frequency`, `sparsity-per-layer`, `error-by-density`, `recall-by-density`.
    """
    drawings = [_frequency_drawing([layer.num_active for layer in calibration.layers])]
    drawings += [
        Drawing(name, title, partial(draw, calibration))
        for name, title, draw in (
            (
                "sparsity-per-layer",
                "Neurons that fire, and neurons that are let pass",
                _draw_layers,
            ),
            ("error-by-density", "FFN error against density, by predictor kind", _draw_errors),
            ("recall-by-density", "Recall against density, by predictor kind", _draw_recalls),
        )
    ]
    return draw_all(drawings, folder, _facts(calibration, model), error=CalibrationError)


def draw_profile(profile: ActivationProfile, folder: Path, *, model: str) -> list[Path]:
    """Plot how unequally the neurons of a profile fire, as PNG and SVG."""
    record = profile.record
    drawing = _frequency_drawing(list(profile.counts))
    facts = (
        model,
        f"{len(record.fired)} layers of {record.num_neurons} neurons",
        f"activation {record.counted.activation}",
        f"{record.num_tokens} tokens of {record.text_names}",
    )
    return draw_all([drawing], folder, facts, error=PowerInferError)


def _facts(calibration: Calibration, model: str) -> tuple[str, ...]:
    layers = calibration.layers
    return (
        model,
        f"{len(layers)} layers of {len(layers[0].num_active)} neurons",
        f"activation {calibration.activation}",
        f"{calibration.num_tokens} tokens of {calibration.text_name}",
        "density, error and recall: about half of the tokens",
        f"chosen for {calibration.dial}",
    )


def _draw_layers(calibration: Calibration, axes: "Axes") -> None:
    """Bars for the neurons that fire in each layer, marks for those its predictor selects."""
    numbers = range(len(calibration.layers))
    active = [100 * calibration.active_share(number) for number in numbers]
    axes.bar(numbers, active, width=0.7, color=BLUE, label="fire (are not zero)")
    points = [layer.chosen_point for layer in calibration.layers]
    passing = {n: 100 * point.density for n, point in enumerate(points) if point is not None}
    if passing:
        left, heights = np.array(list(passing)), list(passing.values())
        label = f"density: let pass by the chosen predictor ({calibration.dial})"
        axes.hlines(heights, left - 0.45, left + 0.45, color=ORANGE, linewidth=2.5, label=label)
    exact = [number for number, point in enumerate(points) if point is None]
    if exact:
        label = "without a predictor (exact): each gate is computed"
        axes.plot(exact, [0] * len(exact), "^", color="black", clip_on=False, label=label)
    frame_layers(axes, len(numbers), max([*active, *passing.values()]))


def _draw_errors(calibration: Calibration, axes: "Axes") -> None:
    """Plot error limits against the density each kind needs for them, averaged over layers."""
    _draw_kinds(calibration, axes, _ERRORS, _density_for_error)
    _draw_dial(calibration.dial.max_ffn_error, axes, "")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_ylabel("upper limit of the FFN error in each layer")


def _draw_recalls(calibration: Calibration, axes: "Axes") -> None:
    """Plot recalls against the density each kind needs for them, averaged over layers."""
    _draw_kinds(calibration, axes, _RECALLS, _density_for_recall, scale=100)
    recall = calibration.dial.recall
    _draw_dial(None if recall is None else 100 * recall, axes, " %")
    axes.set_ylabel("recall in each layer (%)")


def _draw_dial(dial: float | None, axes: "Axes", unit: str) -> None:
    """Mark the dial; put the legend outside, as lines of many kinds leave no room inside."""
    if dial is not None:
        axes.axhline(dial, color=BLACK, linestyle=":", label=f"the dial, {dial:g}{unit}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), borderaxespad=0, fontsize=8.5)


def _draw_kinds(
    calibration: Calibration,
    axes: "Axes",
    wanted: DoubleArray,
    density_for: DensityFor,
    scale: float = 1,
) -> None:
    """Plot one line per kind: mean density over the layers for each target in `wanted`."""
    layers = calibration.layers
    names = dict.fromkeys(name for layer in layers for name in layer.curves)
    # Dashed lines are drawn last, on top.
    for kind in sorted(names, key=lambda kind: _line_of(kind, names)[1] != "-"):
        curves = [layer.curves[kind] for layer in layers if kind in layer.curves]
        density = np.mean([density_for(curve, wanted) for curve in curves], axis=0)
        color, style = _line_of(kind, names)
        axes.plot(100 * density, scale * wanted, style, color=color, linewidth=1.8, label=kind)
    active = 100 * np.mean([calibration.active_share(number) for number in range(len(layers))])
    label = f"neurons that fire, {active:.1f} %"
    axes.axvline(float(active), color=GRAY, linestyle="--", linewidth=1, label=label)
    axes.set_xlabel("density: neurons let pass (%), mean of all layers")
    axes.set_xlim(left=0)


def _line_of(kind: str, names: Iterable[str]) -> tuple[str, str]:
    """Color and style of a kind; unlisted kinds get the remaining ones in alphabetical order."""
    if kind in _LINES:
        return _LINES[kind]
    others = sorted(name for name in names if name not in _LINES)
    return _OTHER_LINES[others.index(kind) % len(_OTHER_LINES)]


def _density_for_error(curve: Curve, errors: DoubleArray) -> DoubleArray:
    limits = [max(point.ffn_error_high, _LEAST_ERROR) for point in curve]
    return _density_for(curve, np.log(limits), np.log(errors))


def _density_for_recall(curve: Curve, recalls: DoubleArray) -> DoubleArray:
    return _density_for(curve, np.array([-point.recall for point in curve]), -recalls)


def _density_for(curve: Curve, losses: DoubleArray, wanted: DoubleArray) -> DoubleArray:
    """Smallest density that stays within each loss, interpolated linearly between measured points.

    `losses` f64[points] are those at the points of the curve. The result is f64[n] for limits
    `wanted` f64[n]; NaN, which is not drawn, outside the measured range.
    """
    measured = np.array([point.density for point in curve])
    order = np.lexsort((measured, losses))
    density = np.minimum.accumulate(measured[order])
    found: DoubleArray = np.interp(wanted, losses[order], density, left=np.nan, right=np.nan)
    return found


def _frequency_drawing(layers: Sequence[npt.NDArray[np.int64]]) -> Drawing:
    """The power law of neurons: share of all activations made by the most active ones."""
    title = "Activations that the most active neurons make"
    return Drawing("activation-frequency", title, partial(_draw_frequency, layers))


def _draw_frequency(layers: Sequence[npt.NDArray[np.int64]], axes: "Axes") -> None:
    """Plot the share of activations made by the hottest neurons: a line per layer and the mean."""
    shares = []
    for number, counts in enumerate(layers):
        falling = np.sort(counts)[::-1].astype(np.float64)
        reached = np.cumsum(falling) / max(1.0, falling.sum())
        shares.append(reached)
        neurons = np.arange(1, len(counts) + 1) / len(counts)
        label = None if number else "one layer"
        axes.plot(100 * neurons, 100 * reached, color=GRAY, alpha=0.5, linewidth=0.8, label=label)
    hot = float(np.mean([hot_share(counts, _HOT) for counts in layers]))
    mean = np.mean(shares, axis=0)
    axes.plot(100 * neurons, 100 * mean, color=BLUE, linewidth=2, label="mean of all layers")
    label = f"{100 * hot:.0f} % of the neurons make {100 * _HOT:.0f} % of the activations"
    axes.axhline(100 * _HOT, color=ORANGE, linestyle=":", label=label)
    axes.axvline(100 * hot, color=ORANGE, linestyle=":")
    axes.set_xlabel("neurons of a layer, those that fire most often first (%)")
    axes.set_ylabel("share of the layer's activations (%)")
    axes.set_xlim(0, 101)
    axes.set_ylim(0, 102)
    axes.legend(loc="lower right")
