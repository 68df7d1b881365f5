"""Measure how well a model predicts a text.

The method is llama.cpp's, so that figures can be compared.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import PathType, read_text
from powerinfer.cli.flags.flags import flag, llm_options
from powerinfer.cli.flags.options import (
    json_option,
    model_option,
    option,
    other_engine_options,
    print_json,
)
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped

if TYPE_CHECKING:
    from powerinfer import LLM
    from powerinfer.engine.perplexity import Perplexity

__all__ = ["COMMAND"]

DEFAULT_WINDOW = 512

_EPILOG = """\b
Examples:
  powerinfer perplexity -m model.gguf -f wiki.test.raw
  powerinfer perplexity -m model.gguf -f wiki.test.raw -c 2048 --json
  powerinfer perplexity -f text.txt --sparsity lowbit:3 --measure-recall

The text is cut into windows of -c tokens; the second half of each is scored.
A remainder shorter than a window is left out. Lower is better. Models with
different vocabularies cannot be compared.

Special tokens in the text, such as <|endoftext|> between documents, are read as
plain text, as in llama.cpp, and scored: remove them first if you do not want to
measure them.
"""


@click.command(epilog=_EPILOG)
@option("-f --file PATH", "Text to score, UTF-8; - is stdin.", PathType(), required=True)
@model_option
@flag("context_length", help="Tokens in a window, and in the context.", default=DEFAULT_WINDOW)
@other_engine_options
@json_option
def perplexity(
    model: Path | None,
    file: Path,
    context_length: int,
    as_json: bool,
    **flags: object,
) -> None:
    """Measure how well a model predicts a text (perplexity; lower is better)."""
    content = read_text(file)
    from powerinfer.cli.model import announce, open_llm
    from powerinfer.cli.report.sparsity import describe_shares, print_recall, sparsity_report
    from powerinfer.models.metrics import NeuronTally

    options = llm_options(flags)
    options["context_length"] = context_length
    reading = _TokensRead()
    with reading.bar, open_llm(model, options, reading) as llm:
        announce(llm.loaded)
        neurons = NeuronTally(llm.loaded.model)
        started = time.perf_counter()
        with neurons.counting(), when_stopped(BEGINS_AGAIN):
            estimate = _measure(llm, content, context_length, reading)
        elapsed_s = time.perf_counter() - started
        if as_json:
            print_json(
                {
                    **_report(estimate, context_length, elapsed_s),
                    **sparsity_report(llm.loaded),
                    "active_share": neurons.active_share,
                    "predicted_share": neurons.predicted_share,
                }
            )
            return
        click.echo(describe_shares(neurons), err=True)
        print_recall(llm.loaded.model)
    click.echo(f"perplexity {estimate.value:.4f} +/- {estimate.standard_error:.5f}")


class _TokensRead:
    """Progress over all windows, from the reports of each single window."""

    def __init__(self) -> None:
        self.bar = ProgressBar("perplexity", unit="tokens", delay_s=0.5)
        self.window, self.num_windows, self.what = 0, 0, "perplexity"
        self._before = 0

    def __call__(self, done: int, of_window: int) -> None:
        """Show the total progress, given tokens done and to be computed in one window."""
        if self.num_windows:
            # Tokens found in the cache are not computed.
            done += self.window - of_window
            self.bar(self._before + done, self.num_windows * self.window, self.what)
            if done == self.window:
                self._before += done


def _measure(llm: "LLM", content: bytes, window: int, reading: _TokensRead) -> "Perplexity":
    """Score all windows with a progress bar that shows the running value."""
    from powerinfer.engine.perplexity import Perplexity, count_windows, perplexity_windows

    token_ids = llm.loaded.tokenizer.encode(content)
    # The last token of a window predicts nothing, and is not computed.
    reading.num_windows, reading.window = count_windows(token_ids, window), window - 1
    estimate = Perplexity()
    for estimate in perplexity_windows(llm, token_ids, window):
        reading.what = f"perplexity {estimate.value:.4f}"
    reading.bar.close()
    return estimate


def _report(estimate: "Perplexity", window: int, elapsed_s: float) -> dict[str, object]:
    """The object of `perplexity --json`; `tokens` are those scored."""
    return {
        "perplexity": estimate.value,
        "standard_error": estimate.standard_error,
        "tokens": estimate.num_scored,
        "context_length": window,
        "windows": estimate.num_windows,
        "elapsed_s": elapsed_s,
        "tokens_per_s": estimate.num_windows * window / elapsed_s if elapsed_s > 0 else None,
    }


COMMAND = perplexity
