"""Train predictors of the neurons that fire, layer by layer.

Needs the extra `train`. PowerInfer's files carry such predictors.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer._files import decimal_bytes
from powerinfer.cli.files import PathType, check_folder, model_file
from powerinfer.cli.flags.flags import flag, flags, llm_options
from powerinfer.cli.flags.options import (
    json_option,
    model_option,
    option,
    print_json,
    read_size,
    resumed_output_option,
    texts_option,
)
from powerinfer.cli.report.progress import ProgressBar, when_stopped
from powerinfer.cli.report.tables import percent, print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.convert.pack import PackReport
    from powerinfer.train.predictors.folder import LayerReport
    from powerinfer.train.predictors.plan import TrainingPlan
    from powerinfer.train.predictors.run import TrainedPredictors

__all__ = ["COMMAND"]

_HEAD = ("layer", "active", "rank", "recall", "precision", "density", "error")

_EPILOG = """\b
Examples:
  powerinfer train-predictors -m model.gguf -f text.txt -o predictors
  powerinfer train-predictors -m model.gguf -f a.txt -f b.txt.zst -o predictors --recall 0.98
  powerinfer train-predictors -m model.gguf -f text.txt -o predictors --pack fast.gguf
  powerinfer run -m fast.gguf -p 'Hello' --sparsity mlp
  powerinfer convert CHECKPOINT --predictors predictors -o fast.gguf

\b
A predictor says before an FFN runs which of its neurons will fire; the others are not
read. It is two small matrices: a neuron passes if fc2 @ relu(fc1 @ x) reaches a
threshold. The command runs the model over the text, records the inputs of every layer
and which neurons fired, and trains each layer's predictor at the smallest rank that
finds --recall of them. The last tenth of the text is held out: at the end the model
runs it with all predictors, and the table says how good they are:
  active     share of the neurons that fire (are not zero)
  recall     share of the firing neurons that the predictor lets pass
  precision  share of the neurons it lets pass that fire
  density    share of the neurons that pass
  error      relative error of the FFN output
In a mixture of experts only the neurons of each token's experts count. Such models need
more text: a token teaches the experts that it is given to.

\b
DIR then holds model_N.pt for each layer with neurons to predict and config.json, as
PowerInfer's converter and `powerinfer pack --predictors` read them, and predictors.json,
the report.
Stop it with Ctrl-C at any time: the same command resumes.
Use text like what the model will read, some hundred thousand tokens of it.
"""


@click.command("train-predictors", epilog=_EPILOG)
@model_option
@texts_option("Text to run the model on, UTF-8, plain or .zst; repeatable.")
@resumed_output_option
@option(
    "--recall X",
    "Share of the firing neurons that predictors must find in every layer.",
    click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
)
@option(
    "--max-share X",
    "Most parameters of all predictors together, as a share of the model's. Takes precedence "
    "over --recall, with a warning.",
    click.FloatRange(0, 1, min_open=True),
    default=0.10,
)
@option(
    "--tokens N",
    "Use at most N tokens of the text.",
    click.IntRange(min=1),
    name="num_tokens",
    default=500_000,
)
@option(
    "--cache DIR",
    "Folder for recorded inputs, removed at the end. [default: cache in the output]",
    PathType(file_okay=False),
)
@option(
    "--cache-size SIZE",
    "Most disk space of --cache; with less, the model runs over the text more often.",
    default="8GiB",
    callback=read_size,
)
@option(
    "--pack FILE",
    "Also write the model with its predictors: in PowerInfer's own format if that has such "
    "models, else as GGUF, which --sparsity mlp runs.",
    PathType(),
    name="packed",
)
@option("--seed N", "Seed of the training.", click.IntRange(0, 1 << 31), default=0)
@flag(
    "device",
    help="Where to train: cpu, cuda, cuda:N, or auto, which takes a GPU if torch finds one. The "
    "model itself runs on the CPU.",
)
@flags("threads", "activation", "kernels")
@json_option
def train_predictors(
    model: Path | None,
    files: tuple[Path, ...],
    output: Path,
    recall: float,
    max_share: float,
    num_tokens: int,
    cache: Path | None,
    cache_size: int,
    packed: Path | None,
    seed: int,
    device: str,
    as_json: bool,
    **flags: object,
) -> None:
    """Train predictors of the neurons that fire, layer by layer."""
    from powerinfer.train.devices import training_device

    found = training_device(device, command="train-predictors")
    from powerinfer.train.predictors.goal import Goal
    from powerinfer.train.predictors.plan import TrainingPlan

    plan = TrainingPlan(
        texts=files,
        num_tokens=num_tokens,
        goal=Goal(recall=recall, max_share=max_share),
        output=output,
        cache=output / "cache" if cache is None else cache,
        cache_bytes=cache_size,
        device=found,
        seed=seed,
    )
    check_folder(output)
    _check_before(model, packed, flags)
    trained = _train(model, plan, flags)
    report = None if packed is None else _pack(model, output, packed, flags)
    if as_json:
        print_json(
            {
                "path": str(output),
                "packed": None if packed is None else str(packed),
                **trained.report,
                "layer_numbers": trained.numbers,
                "share": trained.share,
                "seconds": trained.seconds,
            }
        )
        return
    print_predictors(trained, plan)
    if report is not None:
        print_packed(report)


def print_predictors(trained: "TrainedPredictors", plan: "TrainingPlan") -> None:
    """Print the table on stdout, and the layers that miss the recall on stderr."""
    found = zip(trained.numbers, trained.layers, strict=True)
    short = [number for number, layer in found if layer.recall < plan.goal.recall]
    if short:
        which = ", ".join(map(str, short[:8])) + (", ..." if len(short) > len(short[:8]) else "")
        click.echo(
            f"note: fewer than {percent(plan.goal.recall)} of the firing neurons are found in "
            f"layer{'s' if len(short) > 1 else ''} {which}",
            err=True,
        )
    print_table([_HEAD, *_rows(trained.numbers, trained.layers)])
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


def _rows(numbers: Sequence[int], layers: "Sequence[LayerReport]") -> list[tuple[str, ...]]:
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
        for number, layer in zip(numbers, layers, strict=True)
    ]


def print_packed(report: "PackReport") -> None:
    """Print the packed file and the notes on it."""
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{report.path}: the model with its predictors, {decimal_bytes(report.num_bytes)}")


def _check_before(model: Path | None, packed: Path | None, flags: dict[str, object]) -> None:
    """Check before training that the model fits and everything can be written."""
    from powerinfer.convert.pack import check_may_replace
    from powerinfer.convert.powerinfer.format import powerinfer_architecture
    from powerinfer.convert.powerinfer.pack_predictors import fits_gguf_only
    from powerinfer.gguf import open_gguf
    from powerinfer.models import architecture_of, read_config
    from powerinfer.train.predictors.plan import check_model

    file = open_gguf(model_file(model))
    own = architecture_of(file)
    config = read_config(file, own, llm_options(flags).get("activation"))
    check_model(config)
    if packed is not None:
        check_folder(packed.parent)
        check_may_replace(file, packed)
        if not fits_gguf_only(own, config):
            powerinfer_architecture(own, config.activation, str(file.path))


def _pack(
    model: Path | None, predictors: Path, packed: Path, flags: dict[str, object]
) -> "PackReport":
    from powerinfer.convert.powerinfer.pack_predictors import pack_with_predictors
    from powerinfer.gguf import open_gguf

    with ProgressBar("packing", unit="bytes") as progress:
        return pack_with_predictors(
            open_gguf(model_file(model)),
            predictors,
            packed,
            activation=llm_options(flags).get("activation"),
            progress=progress,
        )


def _train(
    model: Path | None, plan: "TrainingPlan", flags: dict[str, object]
) -> "TrainedPredictors":
    """Train with a progress bar; an early end prints how to resume."""
    from powerinfer.cli.model import open_llm
    from powerinfer.train.predictors.run import train_predictors as train

    options = llm_options(flags)
    options["sparsity"], options["device"] = "exact", "cpu"
    with (
        open_llm(model, options) as llm,
        when_stopped("stopped; the same command resumes from here"),
        ProgressBar("training") as bar,
    ):
        return train(llm.loaded, plan, bar)


COMMAND = train_predictors
