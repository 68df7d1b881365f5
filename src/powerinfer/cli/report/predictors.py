"""Output of `train-predictors`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from powerinfer.cli.report.tables import percent, print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.convert.pack import PackReport
    from powerinfer.train.predictors.folder import LayerReport
    from powerinfer.train.predictors.plan import TrainingPlan
    from powerinfer.train.predictors.run import TrainedPredictors

__all__ = ["print_packed", "print_predictors"]

_HEAD = ("layer", "active", "rank", "recall", "precision", "density", "error")


def print_predictors(trained: "TrainedPredictors", plan: "TrainingPlan") -> None:
    """Print the table on stdout, and the layers that miss the recall on stderr."""
    short = [n for n, layer in enumerate(trained.layers) if layer.recall < plan.goal.recall]
    if short:
        which = ", ".join(map(str, short[:8])) + (", ..." if len(short) > len(short[:8]) else "")
        click.echo(
            f"note: fewer than {percent(plan.goal.recall)} of the firing neurons are found in "
            f"layer{'s' if len(short) > 1 else ''} {which}",
            err=True,
        )
    print_table([_HEAD, *_rows(trained.layers)])
    click.echo()
    print_paragraph(
        f"measured on {trained.report['held_out_tokens']} of {trained.report['tokens']} tokens, "
        "which were held out, with the predictors of all layers active"
    )
    print_paragraph(
        f"the predictors have {percent(trained.share)} of the model's parameters; the limit is "
        f"{percent(plan.goal.max_share)}"
    )
    click.echo(f"written to {plan.output}")


def _rows(layers: "Sequence[LayerReport]") -> list[tuple[str, ...]]:
    return [
        (
            str(number),
            percent(layer.active),
            str(layer.rank),
            percent(layer.recall),
            percent(layer.precision),
            percent(layer.density),
            f"{layer.ffn_error:.4f}",
        )
        for number, layer in enumerate(layers)
    ]


def print_packed(report: "PackReport") -> None:
    """Print the packed file and the notes on it."""
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{report.path}: the model with its predictors, {report.num_bytes / 1e6:.1f} MB")
