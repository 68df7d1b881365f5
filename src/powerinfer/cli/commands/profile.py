"""Count how often each neuron fires over any amount of text.

`powerinfer plan` and PowerInfer's own tools find the counts in the folder `activation`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import click

from powerinfer.cli.files import PathType, check_folder, check_plots, model_file
from powerinfer.cli.flags.flags import flag, flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option, print_json, texts_option
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.cli.report.tables import percent, print_paragraph, print_table
from powerinfer.errors import PowerInferError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from powerinfer import LLM
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.placement.activation_record import ActivationRecord
    from powerinfer.train.profile.comparing import Overlap
    from powerinfer.train.profile.profile import Outcome

__all__ = ["COMMAND"]

# Resolution of the progress bar.
_STEPS = 1000

_EPILOG = """\b
Examples:
  powerinfer profile -m model.gguf -f text.txt
  powerinfer profile -m model.gguf -f books.txt.zst -f chats.txt --tokens 1000000
  powerinfer profile -f stories.txt -o stories                the bundled model
  powerinfer profile -f shakespeare.txt -o plays --compare stories --plot plots
  powerinfer plan -m model.gguf --vram-budget 8               uses it

\b
The model runs without loss over windows of the text, in constant memory. DIR then holds
  activation_N.pt   for how many tokens each neuron of layer N fired: int64, as
                    torch.save writes it and PowerInfer's solver reads it
  activation.json   the model, the texts and the number of tokens, from which
                    `powerinfer plan` takes exact frequencies
A neuron fires for a token if its value is not zero. All tokens count, also the first of
each window. Neuron i of expert e is number e * (neurons of an expert) + i.

\b
Stop it with Ctrl-C at any time: the same command resumes, and the result is the same to
the bit. A line <|endoftext|> between documents is removed: a document begins with BOS
or, without one, after an empty line.
Needs the extra train: scripts/setup train.
"""


@click.command(epilog=_EPILOG)
@model_option
@texts_option("Text to run the model on, UTF-8, plain or .zst; repeatable.")
@option(
    "--tokens N",
    "Count at most N tokens. [default: all]",
    click.IntRange(min=16),
    name="num_tokens",
)
@option(
    "-o --output DIR",
    "Folder to write. [default: activation next to the model]",
    PathType(file_okay=False),
)
@option(
    "--compare DIR",
    "Print which share of the neurons that fire most often is the same in this profile.",
    PathType(file_okay=False),
)
@option(
    "--plot FOLDER",
    "Also draw how unequally often neurons fire, into this folder; needs the extra plot: "
    "scripts/setup plot.",
    PathType(file_okay=False),
    name="plots",
)
@flag(
    "context_length",
    help="Tokens in a window. [default: 512, or the model's context if it is shorter]",
)
@flags("threads", "activation", "kernels")
@json_option
def profile(
    model: Path | None,
    files: tuple[Path, ...],
    num_tokens: int | None,
    output: Path | None,
    compare: Path | None,
    plots: Path | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Count how often each neuron fires over any amount of text."""
    from powerinfer.train.devices import training_device

    training_device("cpu", command="profile")  # its files need torch
    from powerinfer.train.text_files import text_size

    text_size(files)
    options = llm_options(flags)
    has_window = options.get("context_length") is not None
    folder = _folder(model, output, options)
    check_plots(plots)
    from powerinfer.cli.model import open_llm
    from powerinfer.train.profile.comparing import hot_overlaps

    options["sparsity"], options["device"] = "exact", "cpu"
    with open_llm(model, options) as llm:
        other = None if compare is None else _read(llm, compare)
        outcome = _count(llm, files, folder, num_tokens, has_window=has_window)
        config = llm.loaded.model.config
        name = llm.loaded.path.name
    drawn = []
    if plots is not None:
        from powerinfer.bench.calibration_plots import draw_profile

        drawn = draw_profile(outcome.profile, plots, model=name)
    used = 1 if config.experts is None else config.experts.num_used
    overlaps = () if other is None else hot_overlaps(outcome.profile.frequency, other)
    report = _report(outcome, folder, used, compare, overlaps, drawn)
    for number, layer in zip(config.counted_layers, report["layers"], strict=True):
        layer["layer"] = number
    if as_json:
        print_json(report)
    else:
        _print(report, outcome.profile.record, used)


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


def _report(
    outcome: "Outcome",
    folder: Path,
    num_experts_used: int,
    compared_with: Path | None,
    overlaps: "Sequence[Overlap]",
    plots: Sequence[Path],
) -> ProfileReport:
    """Create the object of `profile --json`; without a router a token uses one expert."""
    record = outcome.profile.record
    layers = [
        _layer(outcome, num_experts_used, overlaps, number) for number in range(len(record.fired))
    ]
    return {
        "path": str(folder),
        "plots": [str(path) for path in plots],
        "compared_with": None if compared_with is None else str(compared_with),
        "model": record.counted.model_identity,
        "activation": record.counted.activation,
        "texts": list(record.texts),
        "tokens": record.num_tokens,
        "new_tokens": outcome.new_tokens,
        "elapsed_s": outcome.seconds,
        "tokens_per_s": outcome.tokens_per_s,
        "active_share": sum(layer["active_share"] for layer in layers) / len(layers),
        "overlap": {f"{each.top:g}": each.all for each in overlaps},
        "layers": layers,
    }


def _print(report: ProfileReport, record: "ActivationRecord", num_experts_used: int) -> None:
    """Print the table and the summary on stdout."""
    tops = [f"top {100 * float(top):g} %" for top in report["overlap"]]
    rows = [("layer", "fire", "hot 80 %", "never", *tops)]
    rows += [_row(layer) for layer in report["layers"]]
    if tops:
        shares = [percent(share) for share in report["overlap"].values()]
        rows.append(("all", percent(report["active_share"]), "", "", *shares))
    print_table(rows)
    click.echo()
    print_paragraph(f"counted {_speed(report)} of {record.text_names}")
    print_paragraph(
        "fire: share of the neurons that are not zero; hot 80 %: share of the neurons that make "
        "80 % of the activations; never: share that fired for no token"
    )
    if report["compared_with"] is not None:
        print_paragraph(
            "top: share of the neurons that fire most often here and also do so in "
            f"{report['compared_with']}"
        )
    if record.num_experts > 1:
        print_paragraph(
            f"a token uses {num_experts_used} of {record.num_experts} experts: fire counts "
            "the neurons of those, hot 80 % and never the neurons of all"
        )
    click.echo(f"stored in {report['path']}")
    for path in report["plots"]:
        click.echo(f"drawn: {path}")


def _speed(report: ProfileReport) -> str:
    tokens = f"{report['tokens']} tokens"
    if report["tokens_per_s"] is None:
        return f"{tokens}, in an earlier run,"
    before = report["tokens"] - report["new_tokens"]
    earlier = f", {before} of them in an earlier run," if before else ""
    return f"{tokens}{earlier} at {report['tokens_per_s']:.0f} tokens/s"


def _layer(
    outcome: "Outcome", num_experts_used: int, overlaps: "Sequence[Overlap]", number: int
) -> LayerReport:
    from powerinfer.predictors.calibration import hot_share

    record, counts = outcome.profile.record, outcome.profile.counts[number]
    of_all = record.fired[number] / record.num_tokens / record.num_neurons
    return {
        "layer": number,
        "active_share": of_all * record.num_experts / num_experts_used,
        "hot_share": hot_share(counts),
        "never_share": float((counts == 0).mean()),
        "overlap": {f"{each.top:g}": each.layers[number] for each in overlaps},
    }


def _row(layer: LayerReport) -> tuple[str, ...]:
    return (
        str(layer["layer"]),
        percent(layer["active_share"]),
        percent(layer["hot_share"]),
        percent(layer["never_share"]),
        *map(percent, layer["overlap"].values()),
    )


def _folder(model: Path | None, output: Path | None, options: "LLMOptions") -> Path:
    """The folder to write, checked before the model is loaded."""
    from powerinfer.calibration.files import is_packaged
    from powerinfer.calibration.targets import check_activation
    from powerinfer.gguf import open_gguf
    from powerinfer.hub.caches import is_fetched
    from powerinfer.placement.activation_folder import FOLDER

    file = open_gguf(model_file(model))
    check_activation(file, options.get("activation"), purpose="profile")
    if output is None and (is_packaged(file.path) or is_fetched(file.path)):
        origin = "comes with the package" if is_packaged(file.path) else "was fetched from the Hub"
        raise PowerInferError(
            f"{file.path.name} {origin}, so nothing is written next to it",
            remedy="name a folder with {output}",
        )
    folder = file.path.parent / FOLDER if output is None else output
    check_folder(folder)
    return folder


def _read(llm: "LLM", folder: Path) -> "npt.NDArray[np.float32]":
    """Firing frequencies in another folder of counts."""
    from powerinfer.placement.activation_folder import read_activation_folder

    config = llm.loaded.model.config
    return read_activation_folder(
        folder, num_layers=len(config.counted_layers), num_neurons=config.num_neurons
    ).frequency


def _count(
    llm: "LLM", files: tuple[Path, ...], folder: Path, limit: int | None, *, has_window: bool
) -> "Outcome":
    """Count with a progress bar."""
    from powerinfer.calibration.text import WINDOW
    from powerinfer.train.profile.profile import make_profile

    context = llm.loaded.model.context_length
    with ProgressBar("counting") as bar:

        def show(share: float, tokens: int, tokens_per_s: float) -> None:
            what = f"counting: {tokens} tokens, {tokens_per_s:.0f} tokens/s"
            bar(round(share * _STEPS), _STEPS, what)

        def note(tokens: int) -> None:
            bar.close()
            click.echo(
                f"note: {tokens} tokens are counted; the same command resumes there", err=True
            )

        return make_profile(
            llm.loaded,
            files,
            folder,
            window=context if has_window else min(WINDOW, context),
            limit=limit,
            progress=show,
            stopped=note,
        )


COMMAND = profile
