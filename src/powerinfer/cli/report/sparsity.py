"""Output on sparsity: the kinds that run, and the results of `--measure-recall`."""

from typing import TYPE_CHECKING

from powerinfer.calibration.recall import LayerRecall, recall_meter
from powerinfer.cli.report.ffn_storage import experts_report
from powerinfer.cli.report.tables import percent, print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.loading.loader import LoadedModel
    from powerinfer.models import Model
    from powerinfer.models.metrics import Metrics, NeuronTally

__all__ = ["describe_shares", "describe_sparsity", "print_recall", "sparsity_report"]


def describe_sparsity(loaded: "LoadedModel") -> str:
    """Phrase on the choice of neurons, for the line at the start."""
    watched = " (measuring recall: speeds mean nothing)"
    return loaded.sparsity.summary + (watched if loaded.options.measure_recall else "")


def describe_shares(neurons: "NeuronTally | Metrics") -> str:
    """Shares of active and predicted neurons as one line."""
    of_experts = " of the chosen experts" if neurons.has_experts else ""
    text = f"active neurons{of_experts} {percent(neurons.active_share)}"
    if neurons.predicted_share is None:
        return text
    return f"{text}; predicted {percent(neurons.predicted_share)}"


def sparsity_report(loaded: "LoadedModel") -> dict[str, object]:
    """Keys on sparsity in every `--json` report; lists have one value per layer.

    `experts` is None for a model without; `recall`, `precision` and `ffn_error` are None without
    `--measure-recall`.
    """
    model = loaded.model
    meter = recall_meter(model)
    layers = None if meter is None else meter.layers
    return {
        "sparsity": model.sparsity,
        "layer_kinds": list(model.layer_kinds),
        "experts": experts_report(loaded.file, model.config),
        "recall": None if layers is None else [layer.recall for layer in layers],
        "precision": None if layers is None else [layer.precision for layer in layers],
        "ffn_error": None if layers is None else [layer.ffn_error for layer in layers],
    }


_RECALL_HEAD = (*("layer", "kind", "fire", "density", "recall", "precision", "FFN error"),)


def print_recall(model: "Model") -> None:
    """Print the table of `--measure-recall` on stderr; nothing without it."""
    meter = recall_meter(model)
    if meter is None:
        return
    rows = [_row(number, layer) for number, layer in enumerate(meter.layers)]
    print_table([_RECALL_HEAD, *rows], left=(1,), err=True)
    of_experts = " of the chosen experts" if meter.has_experts else ""
    print_paragraph(
        f"fire: share of the neurons{of_experts} that are not zero; density: share that the "
        "predictor lets pass; recall: share of the firing neurons that pass; precision: share of "
        "the passing neurons that fire; FFN error: norm of the FFN output's error, divided by the "
        "output's norm.",
        err=True,
    )
    print_paragraph(
        "Speeds include the measuring and mean nothing here; bytes and shares exclude it.",
        err=True,
    )


def _row(number: int, layer: LayerRecall) -> tuple[str, ...]:
    return (
        str(number),
        layer.kind,
        percent(layer.firing_share),
        percent(layer.predicted_share),
        percent(layer.recall, 3),
        percent(layer.precision),
        "-" if layer.ffn_error is None else f"{layer.ffn_error:.5f}",
    )
