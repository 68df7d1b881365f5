"""What `powerinfer calibrate` prints: tables of layers and kinds and a summary, or JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.tables import print_table

if TYPE_CHECKING:
    from powerinfer.predictors.calibration import Calibration, LayerCalibration

__all__ = ["as_report", "print_report"]

_HEAD = (
    "layer",
    "active",
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
_MEANS = ("density", "recall", "precision", "ffn_error", "time")


def as_report(calibration: "Calibration", stored: Path, plots: Sequence[Path]) -> dict[str, Any]:
    """The object of `calibrate --json`.

    `time` is the predicted time of the FFN in units of that of `exact`; `hot_share` the share of
    the neurons that makes 80 % of the activations. `kinds` has what each measured kind does at
    its fastest setting within the dial: means over the `layers` where it has one.
    """
    return {
        "path": str(stored),
        "plots": [str(path) for path in plots],
        "model": calibration.model_identity,
        "activation": calibration.activation,
        "text": calibration.text_name,
        "tokens": calibration.num_tokens,
        "max_ffn_error": calibration.dial.max_ffn_error,
        "recall": calibration.dial.recall,
        "time": _time(calibration),
        "layers": [_layer(calibration, number) for number in range(len(calibration.layers))],
        "kinds": _kinds(calibration),
    }


def print_report(calibration: "Calibration", stored: Path, plots: Sequence[Path]) -> None:
    """Print the tables and the summary on stdout."""
    print_table([_HEAD, *(_row(_layer(calibration, n)) for n in range(len(calibration.layers)))])
    click.echo(
        "each kind at its fastest within the dial: means over the layers where it stays within"
    )
    print_table([_KINDS_HEAD, *(_kind_row(kind) for kind in _kinds(calibration))])
    click.echo(
        f"measured on {calibration.num_tokens} tokens of {calibration.text_name}, chosen for "
        f"{calibration.dial}"
    )
    click.echo(
        f"hot 80 %: share of the neurons that makes 80 % of the activations; time: of the FFN "
        f"against exact, by bytes read; all layers {_time(calibration):.2f}"
    )
    click.echo(f"stored in {stored}")
    for path in plots:
        click.echo(f"drawn: {path}")


def _kinds(calibration: "Calibration") -> list[dict[str, Any]]:
    """What each kind does within the dial, whether or not it was chosen."""
    from powerinfer.predictors.choosing import point_for

    found, layers = [], calibration.layers
    for name in dict.fromkeys(name for layer in layers for name in layer.curves):
        reached = [point_for(layer.curves.get(name, ()), calibration.dial) for layer in layers]
        points = [point for point in reached if point is not None]
        means = {
            field: sum(getattr(point, field) for point in points) / len(points) if points else None
            for field in _MEANS
        }
        found.append({"kind": name, "layers": len(points), **means})
    return found


def _kind_row(kind: dict[str, Any]) -> tuple[str, ...]:
    return (
        kind["kind"],
        str(kind["layers"]),
        _percent(kind["density"]),
        _percent(kind["recall"]),
        _percent(kind["precision"]),
        "-" if kind["ffn_error"] is None else f"{kind['ffn_error']:.4f}",
        "-" if kind["time"] is None else f"{kind['time']:.2f}",
    )


def _layer(calibration: "Calibration", number: int) -> dict[str, Any]:
    layer: LayerCalibration = calibration.layers[number]
    point = layer.chosen_point
    return {
        "layer": number,
        "active_share": calibration.active_share(number),
        "hot_share": layer.hot_share(),
        "kind": layer.choice.kind,
        "thresholds": list(layer.choice.thresholds),
        "density": None if point is None else point.density,
        "recall": 1.0 if point is None else point.recall,
        "precision": None if point is None else point.precision,
        "ffn_error": 0.0 if point is None else point.ffn_error,
        "time": 1.0 if point is None else point.time,
    }


def _row(layer: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(layer["layer"]),
        _percent(layer["active_share"]),
        _percent(layer["hot_share"]),
        layer["kind"],
        ", ".join(f"{threshold:.3g}" for threshold in layer["thresholds"]) or "-",
        _percent(layer["density"]),
        _percent(layer["recall"]),
        _percent(layer["precision"]),
        f"{layer['ffn_error']:.4f}",
        f"{layer['time']:.2f}",
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _time(calibration: "Calibration") -> float:
    """Mean over the layers, which are equally large."""
    points = [layer.chosen_point for layer in calibration.layers]
    return sum(1.0 if point is None else point.time for point in points) / len(points)
