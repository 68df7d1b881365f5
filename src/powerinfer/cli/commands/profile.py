"""Count how often each neuron fires over any amount of text.

`powerinfer plan` and PowerInfer's own tools find the counts in the folder `activation`.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import PathType, check_folder, check_plots, model_file
from powerinfer.cli.flags.flags import flag, flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option, print_json, texts_option
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.errors import PowerInferError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from powerinfer import LLM
    from powerinfer.options.llm_options import LLMOptions
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
    as_json: bool,  # noqa: FBT001
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
    from powerinfer.cli.report.profile import Written, as_report, print_report
    from powerinfer.train.profile.comparing import hot_overlaps

    options["sparsity"], options["device"] = "exact", "cpu"
    with open_llm(model, options) as llm:
        other = None if compare is None else _read(llm, compare)
        outcome = _count(llm, files, folder, num_tokens, has_window=has_window)
        experts = llm.loaded.model.config.experts
        name = llm.loaded.path.name
    drawn = [] if plots is None else _draw(outcome, plots, name)
    written = Written(
        folder,
        1 if experts is None else experts.num_used,
        compare,
        () if other is None else hot_overlaps(outcome.profile.frequency, other),
        drawn,
    )
    if as_json:
        print_json(as_report(outcome, written))
    else:
        print_report(outcome, written)


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
        folder, num_layers=config.num_layers, num_neurons=config.num_neurons
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


def _draw(outcome: "Outcome", plots: Path, model: str) -> list[Path]:
    from powerinfer.bench.frequency_plot import draw_profile

    return draw_profile(outcome.profile, plots, model=model)


COMMAND = profile
