"""What `powerinfer calibrate` prints: a table of layers and a summary, or one JSON object."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

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


def as_report(calibration: "Calibration", stored: Path, plots: Sequence[Path]) -> dict[str, Any]:
    """The object of `calibrate --json`.

    `time` is the predicted time of the FFN in units of that of `exact`; `hot_share` the share of
    the neurons that makes 80 % of the activations.
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
    }


def print_report(calibration: "Calibration", stored: Path, plots: Sequence[Path]) -> None:
    """Print the table and the summary on stdout."""
    rows = [_HEAD, *(_row(_layer(calibration, n)) for n in range(len(calibration.layers)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        cells = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells))
    click.echo()
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
