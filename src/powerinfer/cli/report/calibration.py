"""Output of `powerinfer calibrate`: tables of layers and kinds with a summary, or JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from powerinfer.cli.report.tables import percent, print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.predictors.calibration import Calibration, CurvePoint, LayerCalibration

__all__ = ["as_report", "print_report"]

_HEAD = (
    "layer",
    "fire",
    "hot 80 %",
    "kind",
    "threshold",
    "density",
    "recall",
    "precision",
    "error",
    "time",
)

_KINDS_HEAD = ("kind", "layers", "density", "recall", "precision", "error", "time")


class KindReport(TypedDict):
    """Means of a kind within the dial, over the `layers` that have such a setting."""

    kind: str
    layers: int
    density: float | None
    recall: float | None
    precision: float | None
    ffn_error: float | None
    time: float | None


class LayerReport(TypedDict):
    """Measurements and choice of a layer."""

    layer: int
    active_share: float
    hot_share: float
    kind: str
    thresholds: list[float]
    density: float | None
    recall: float
    precision: float | None
    ffn_error: float
    time: float


def as_report(
    calibration: "Calibration",
    numbers: Sequence[int],
    stored: Path,
    exports: Sequence[Path],
    plots: Sequence[Path],
) -> dict[str, object]:
    """Create the object of `calibrate --json`; `numbers` are those of the calibration's layers.

    `time` is the predicted time of the FFN relative to `exact`; `hot_share` the share of the
    neurons that make 80 % of the activations. `kinds` has each measured kind at its fastest
    setting within the dial.

    In a mixture of experts `hot_share` counts the neurons of all experts, all other shares those
    of the experts that a token uses.
    """
    return {
        "path": str(stored),
        "exports": [str(path) for path in exports],
        "plots": [str(path) for path in plots],
        "model": calibration.model_identity,
        "activation": calibration.activation,
        "text": calibration.text_name,
        "tokens": calibration.num_tokens,
        "max_ffn_error": calibration.dial.max_ffn_error,
        "recall": calibration.dial.recall,
        "zeros": calibration.dial.zeros,
        "time": _time(calibration),
        "layers": _layers(calibration, numbers),
        "kinds": _kinds(calibration),
    }


def print_report(
    calibration: "Calibration",
    numbers: Sequence[int],
    stored: Path,
    exports: Sequence[Path],
    plots: Sequence[Path],
) -> None:
    """Print the tables and the summary on stdout; `numbers` as in `as_report`."""
    print_table([_HEAD, *map(_row, _layers(calibration, numbers))])
    click.echo()
    print_paragraph(
        "each kind at its fastest setting within the limit: means over the layers that have one "
        "(column 2)"
    )
    print_table([_KINDS_HEAD, *(_kind_row(kind) for kind in _kinds(calibration))])
    click.echo()
    print_paragraph(
        f"measured on {calibration.num_tokens} tokens of {calibration.text_name}, chosen for "
        f"{calibration.dial}"
    )
    print_paragraph(
        "fire: share of the neurons that are not zero; hot 80 %: share of the neurons that make "
        "80 % of the activations; density: share that the predictor lets pass; time: of the FFN, "
        f"relative to exact, by bytes read; all layers {_time(calibration):.2f}"
    )
    if calibration.num_experts > 1:
        print_paragraph(
            f"a token uses {calibration.num_experts_used} of {calibration.num_experts} experts: "
            "shares count the neurons of those, hot 80 % the neurons of all"
        )
    click.echo(f"stored in {stored}")
    for path in exports:
        click.echo(f"exported: {path}")
    for path in plots:
        click.echo(f"drawn: {path}")


def _kinds(calibration: "Calibration") -> list[KindReport]:
    """Every measured kind within the dial, chosen or not."""
    from powerinfer.predictors.choosing import point_for

    found, layers = [], calibration.layers
    for name in dict.fromkeys(name for layer in layers for name in layer.curves):
        reached = [point_for(layer.curves.get(name, ()), calibration.dial) for layer in layers]
        found.append(_kind(name, [point for point in reached if point is not None]))
    return found


def _kind(name: str, points: "list[CurvePoint]") -> KindReport:
    return {
        "kind": name,
        "layers": len(points),
        "density": _mean([point.density for point in points]),
        "recall": _mean([point.recall for point in points]),
        "precision": _mean([point.precision for point in points]),
        "ffn_error": _mean([point.ffn_error for point in points]),
        "time": _mean([point.time for point in points]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _kind_row(kind: KindReport) -> tuple[str, ...]:
    return (
        kind["kind"],
        str(kind["layers"]),
        percent(kind["density"]),
        percent(kind["recall"]),
        percent(kind["precision"]),
        "-" if kind["ffn_error"] is None else f"{kind['ffn_error']:.4f}",
        "-" if kind["time"] is None else f"{kind['time']:.2f}",
    )


def _layers(calibration: "Calibration", numbers: Sequence[int]) -> list[LayerReport]:
    return [_layer(calibration, place, number) for place, number in enumerate(numbers)]


def _layer(calibration: "Calibration", place: int, number: int) -> LayerReport:
    layer: LayerCalibration = calibration.layers[place]
    point = layer.chosen_point
    return {
        "layer": number,
        "active_share": calibration.active_share(place),
        "hot_share": layer.hot_share(),
        "kind": layer.choice.kind,
        "thresholds": list(layer.choice.thresholds),
        "density": None if point is None else point.density,
        "recall": 1.0 if point is None else point.recall,
        "precision": None if point is None else point.precision,
        "ffn_error": 0.0 if point is None else point.ffn_error,
        "time": 1.0 if point is None else point.time,
    }


def _row(layer: LayerReport) -> tuple[str, ...]:
    return (
        str(layer["layer"]),
        percent(layer["active_share"]),
        percent(layer["hot_share"]),
        layer["kind"],
        ", ".join(f"{threshold:.3g}" for threshold in layer["thresholds"]) or "-",
        percent(layer["density"]),
        percent(layer["recall"]),
        percent(layer["precision"]),
        f"{layer['ffn_error']:.4f}",
        f"{layer['time']:.2f}",
    )


def _time(calibration: "Calibration") -> float:
    """Mean time over the layers, which are equally large."""
    points = [layer.chosen_point for layer in calibration.layers]
    return sum(1.0 if point is None else point.time for point in points) / len(points)
