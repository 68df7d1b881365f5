"""Output of `powerinfer profile`: a table of the layers and a summary, or JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from powerinfer.cli.report.tables import percent, print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.train.profile.comparing import Overlap
    from powerinfer.train.profile.profile import Outcome

__all__ = ["Written", "as_report", "print_report"]


class LayerReport(TypedDict):
    """Shares of a layer; `overlap` is empty if nothing was compared."""

    layer: int
    active_share: float
    hot_share: float
    never_share: float
    overlap: dict[str, float]


class ProfileReport(TypedDict):
    """The object of `profile --json`.

    `active_share` is the share of the neurons that fire, among the experts that a token uses;
    `hot_share` the share of a layer's neurons that make 80 % of the activations, `never_share`
    that of neurons that never fired. `overlap` has for the hottest 10, 20 and 50 % of the neurons
    (`"0.1"`) the share that is among the hottest of the compared folder, in each layer and, at the
    top, over all layers. `tokens_per_s` is null if an earlier run had counted everything.
    """

    path: str
    plots: list[str]
    compared_with: str | None
    model: str
    activation: str
    texts: list[str]
    tokens: int
    new_tokens: int
    elapsed_s: float
    tokens_per_s: float | None
    active_share: float
    overlap: dict[str, float]
    layers: list[LayerReport]


@dataclass(frozen=True, slots=True)
class Written:
    """Written files, and the folder of another profile that was compared with.

    Attributes:
        num_experts_used: experts that a token uses; 1 without a router.
    """

    folder: Path
    num_experts_used: int = 1
    compared_with: Path | None = None
    overlaps: "Sequence[Overlap]" = ()
    plots: Sequence[Path] = ()


def as_report(outcome: "Outcome", written: Written) -> ProfileReport:
    """Create the object of `profile --json`."""
    record = outcome.profile.record
    layers = [_layer(outcome, written, number) for number in range(len(record.fired))]
    return {
        "path": str(written.folder),
        "plots": [str(path) for path in written.plots],
        "compared_with": None if written.compared_with is None else str(written.compared_with),
        "model": record.counted.model_identity,
        "activation": record.counted.activation,
        "texts": list(record.texts),
        "tokens": record.num_tokens,
        "new_tokens": outcome.new_tokens,
        "elapsed_s": outcome.seconds,
        "tokens_per_s": outcome.tokens_per_s,
        "active_share": sum(layer["active_share"] for layer in layers) / len(layers),
        "overlap": {f"{each.top:g}": each.all for each in written.overlaps},
        "layers": layers,
    }


def print_report(outcome: "Outcome", written: Written) -> None:
    """Print the table and the summary on stdout."""
    report, record = as_report(outcome, written), outcome.profile.record
    tops = [f"top {100 * each.top:g} %" for each in written.overlaps]
    rows = [("layer", "fire", "hot 80 %", "never", *tops)]
    rows += [_row(layer) for layer in report["layers"]]
    if tops:
        shares = [percent(share) for share in report["overlap"].values()]
        rows.append(("all", percent(report["active_share"]), "", "", *shares))
    print_table(rows)
    click.echo()
    print_paragraph(f"counted {_speed(outcome)} of {record.text_names}")
    print_paragraph(
        "fire: share of the neurons that are not zero; hot 80 %: share of the neurons that make "
        "80 % of the activations; never: share that fired for no token"
    )
    if written.compared_with is not None:
        print_paragraph(
            "top: share of the neurons that fire most often here and also do so in "
            f"{written.compared_with}"
        )
    if record.num_experts > 1:
        print_paragraph(
            f"a token uses {written.num_experts_used} of {record.num_experts} experts: fire counts "
            "the neurons of those, hot 80 % and never the neurons of all"
        )
    click.echo(f"stored in {written.folder}")
    for path in written.plots:
        click.echo(f"drawn: {path}")


def _speed(outcome: "Outcome") -> str:
    tokens = f"{outcome.profile.record.num_tokens} tokens"
    if outcome.tokens_per_s is None:
        return f"{tokens}, in an earlier run,"
    before = outcome.profile.record.num_tokens - outcome.new_tokens
    earlier = f", {before} of them in an earlier run," if before else ""
    return f"{tokens}{earlier} at {outcome.tokens_per_s:.0f} tokens/s"


def _layer(outcome: "Outcome", written: Written, number: int) -> LayerReport:
    from powerinfer.predictors.calibration import hot_share

    record, counts = outcome.profile.record, outcome.profile.counts[number]
    of_all = record.fired[number] / record.num_tokens / record.num_neurons
    return {
        "layer": number,
        "active_share": of_all * record.num_experts / written.num_experts_used,
        "hot_share": hot_share(counts),
        "never_share": float((counts == 0).mean()),
        "overlap": {f"{each.top:g}": each.layers[number] for each in written.overlaps},
    }


def _row(layer: LayerReport) -> tuple[str, ...]:
    return (
        str(layer["layer"]),
        percent(layer["active_share"]),
        percent(layer["hot_share"]),
        percent(layer["never_share"]),
        *map(percent, layer["overlap"].values()),
    )
