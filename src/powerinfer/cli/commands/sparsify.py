"""Give a checkpoint an activation that makes neurons zero, and continue its training.

CHECKPOINT is the folder of a Llama- or Mistral-shaped SwiGLU checkpoint, hf:ORG/NAME[@REVISION] on
the Hugging Face Hub, or a GGUF file of a Llama, quantized or not. Needs the extra `train`. This is
the recipe of TurboSparse, with a first part of our own.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from powerinfer.cli.files import check_folder
from powerinfer.cli.flags.flags import flag
from powerinfer.cli.flags.options import (
    json_option,
    option,
    print_json,
    resumed_output_option,
    texts_option,
)
from powerinfer.cli.report.progress import ProgressBar, when_stopped
from powerinfer.cli.report.tables import change, percent

if TYPE_CHECKING:
    from powerinfer.train.sparsify.recipe import Recipe

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer sparsify Llama-3.2-1B -f text.txt -o sparse --tokens 100000000
  powerinfer sparsify Mistral-7B -f web.txt.zst -f books.txt -o sparse --tokens 1000000000
  powerinfer sparsify small -f text.txt -o sparse --tokens 3000000 --density-penalty 0.3
  powerinfer sparsify smollm2.gguf -f text.txt -o sparse --tokens 4000000 --fit-tokens 100000
  powerinfer convert sparse -o sparse.gguf

\b
A neuron's value becomes relu(gate) * relu(up) (dReLU) or relu(gate) * up (ReGLU), so
that most are exactly zero and need not be computed. At first that hurts the model;
training on text like what it was trained on repairs it: AdamW, a warm-up, then a
cosine. With --fit-tokens each layer is first solved for, in minutes that save hours
of training. A twentieth of the text, taken from all over it, is held out; at the end
you see its perplexity before and after, and the share of zeros in each layer.

\b
DIR then holds a checkpoint for `powerinfer convert`: with dReLU one of type `bamboo`,
so that no program runs it with another activation. training.jsonl is the log.
Stop it with Ctrl-C at any time: the same command resumes from the last save, and the
result is the same to the bit.
"""


@click.command(epilog=_EPILOG)
@click.argument("checkpoint", metavar="CHECKPOINT")
@texts_option(
    "Text to train on, UTF-8, plain or .zst; repeatable. A line <|endoftext|> separates documents."
)
@resumed_output_option
@option(
    "--tokens N",
    "Tokens to train on; a shorter text is repeated.",
    click.IntRange(min=1),
    required=True,
)
@option(
    "--activation",
    "New FFN activation: drelu makes more zeros, relu keeps a Llama or Mistral checkpoint.",
    click.Choice(["drelu", "relu"]),
    default="drelu",
)
@option(
    "--distill W",
    "Weight of matching the predictions of the unchanged model, which must fit into memory too.",
    click.FloatRange(min=0),
    default=0.0,
)
@option(
    "--density-penalty W",
    "Weight of a penalty on neurons that are not zero: more zeros, a higher perplexity.",
    click.FloatRange(min=0),
    default=0.0,
)
@option(
    "--learning-rate X",
    "Peak learning rate; it ends at a tenth. Small models take 1e-3.",
    click.FloatRange(min=0, min_open=True),
    default=5e-5,
)
@option(
    "--fit-tokens N",
    "Tokens by which each FFN is first solved for in closed form, to give what the old one gave; 0 "
    "for none. The unchanged model must fit into memory too.",
    click.IntRange(min=0),
    default=0,
)
@option("--seq-len N", "Tokens in a training sequence.", click.IntRange(min=1), default=512)
@option("--batch-tokens N", "Tokens in one optimizer step.", click.IntRange(min=1), default=16384)
@option("--seed N", "Seed of the order of the sequences.", click.IntRange(0, 1 << 31), default=1)
@flag(
    "device",
    help="Where to train: cpu, cuda, cuda:N, or auto, which takes a GPU if torch finds one.",
)
@json_option
def sparsify(
    checkpoint: str,
    files: tuple[Path, ...],
    output: Path,
    activation: Literal["drelu", "relu"],
    device: str,
    as_json: bool,
    fit_tokens: int,
    **numbers: float,
) -> None:
    """Continue training CHECKPOINT with an activation that makes most neurons zero."""
    from powerinfer.train.devices import training_device

    found = training_device(device, command="sparsify")
    from powerinfer.train.sparsify.sparsify import SparsifyPlan
    from powerinfer.train.sparsify.sparsify import sparsify as train

    recipe = _recipe(numbers)
    check_folder(output)
    path = _path_of(checkpoint)
    plan = SparsifyPlan(path, files, output, recipe, activation, found, fit_tokens)
    with (
        when_stopped("stopped; the same command resumes from the last save"),
        ProgressBar("training") as bar,
    ):
        report = train(plan, bar)
    if as_json:
        print_json({key: value for key, value in report.items() if key != "run"})
    else:
        _print(report)


def _path_of(checkpoint: str) -> Path:
    """A GGUF file, or the folder of a checkpoint, which is downloaded if need be."""
    from powerinfer.convert.source import checkpoint_folder

    path = Path(checkpoint)
    if path.suffix == ".gguf" and path.is_file():
        return path
    with ProgressBar("downloading", unit="bytes") as fetching:
        return checkpoint_folder(checkpoint, fetching)


def _recipe(numbers: dict[str, float]) -> "Recipe":
    from powerinfer.train.sparsify.recipe import Recipe

    rate = numbers["learning_rate"]
    return Recipe(**numbers, min_rate=rate / 10)  # type: ignore[arg-type]  # as click checked


def _print(report: dict[str, object]) -> None:
    """Print the results and the next step."""
    values = {key: value for key, value in report.items() if isinstance(value, int | float)}
    before, after = values["perplexity_before"], values["perplexity"]
    layers = report["layers"]
    zeros = [layer["zeros"] for layer in layers] if isinstance(layers, list) else []
    tokens, seconds = values["tokens"], max(values["seconds"], 1e-9)
    click.echo(
        f"{report['path']}: {report['activation']}, trained on {tokens} tokens in "
        f"{values['steps']} steps, {seconds:.0f} s, {tokens / seconds:.0f} tokens/s"
    )
    if "fit_tokens" in values:
        click.echo(
            f"before that fitted on {values['fit_tokens']} tokens: perplexity "
            f"{values['fit_perplexity']:.3f}, zeros {percent(values['fit_zeros'])}"
        )
    click.echo(
        f"perplexity on {values['held_out_tokens']} held-out tokens: {before:.3f} before, "
        f"{after:.3f} now ({change(after / before - 1, 1)})"
    )
    shares = ", ".join(percent(share) for share in zeros)
    click.echo(f"neurons that are zero: {percent(values['zeros'])} (by layer: {shares})")
    click.echo(f"next: powerinfer convert {report['path']} -o {report['path']}.gguf")


COMMAND = sparsify
