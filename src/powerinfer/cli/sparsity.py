"""What commands say about sparsity: which kinds run, and what `--measure-recall` found."""

from typing import TYPE_CHECKING, Any

import click

from powerinfer.engine.calibration.recall import LayerRecall, recall_meter

if TYPE_CHECKING:
    from powerinfer.engine.loader import LoadedModel
    from powerinfer.engine.metrics import NeuronTally
    from powerinfer.models import Model

__all__ = ["describe_shares", "describe_sparsity", "print_recall", "sparsity_report"]


def describe_sparsity(loaded: "LoadedModel") -> str:
    """What decides which neurons run, for the line at the start."""
    watched = " (recall is measured: speed means nothing)"
    return loaded.sparsity.summary + (watched if loaded.options.measure_recall else "")


def describe_shares(neurons: "NeuronTally") -> str:
    """Which neurons ran, as one line."""
    text = f"active neurons {_percent(neurons.active_share)}"
    if neurons.predicted_share is None:
        return text
    return f"{text}; predicted {_percent(neurons.predicted_share)}"


def sparsity_report(model: "Model") -> dict[str, Any]:
    """The keys of every `--json` report on what ran; lists have one value per layer.

    `recall`, `precision` and `ffn_error` are None without `--measure-recall`.
    """
    meter = recall_meter(model)
    layers = None if meter is None else meter.layers
    return {
        "sparsity": model.sparsity,
        "layer_kinds": list(model.layer_kinds),
        "recall": layers and [layer.recall for layer in layers],
        "precision": layers and [layer.precision for layer in layers],
        "ffn_error": layers and [layer.ffn_error for layer in layers],
    }


def print_recall(model: "Model") -> None:
    """Print the table of `--measure-recall` on stderr; nothing without it."""
    meter = recall_meter(model)
    if meter is None:
        return
    click.echo(
        "layer  kind                 firing  predicted    recall  precision  FFN error", err=True
    )
    for number, layer in enumerate(meter.layers):
        click.echo(_row(number, layer), err=True)
    click.echo(
        "FFN error: root of the share of the output's square that wrongly skipped neurons carried.",
        err=True,
    )
    click.echo(
        "Figures of speed include the measuring and mean nothing here; bytes and shares do not.",
        err=True,
    )


def _row(number: int, layer: LayerRecall) -> str:
    error = "-" if layer.ffn_error is None else f"{layer.ffn_error:.5f}"
    return (
        f"{number:5d}  {layer.kind:18}  {_percent(layer.firing_share):>7}  "
        f"{_percent(layer.predicted_share):>9}  {_percent(layer.recall, 3):>8}  "
        f"{_percent(layer.precision):>9}  {error:>9}"
    )


def _percent(share: float | None, digits: int = 1) -> str:
    return "-" if share is None else f"{100 * share:.{digits}f} %"
