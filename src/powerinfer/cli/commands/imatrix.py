"""Measure how important the weights of a model are.

`powerinfer quantize --imatrix` and llama.cpp's quantizer use the result.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import PathType, check_folder, read_text, text_name
from powerinfer.cli.flags.flags import flag, flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option, print_json
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped

if TYPE_CHECKING:
    from powerinfer import LLM
    from powerinfer.convert.quantize.imatrix import ImportanceMatrix

__all__ = ["COMMAND"]

DEFAULT_WINDOW = 512

_EPILOG = """\b
Examples:
  powerinfer imatrix -m model-f16.gguf -f text.txt -o model.imatrix.gguf
  powerinfer quantize model-f16.gguf model-q4.gguf Q4_0 --imatrix model.imatrix.gguf

\b
The model runs over the text in windows of -c tokens. For every matrix in its layers the
squared inputs are summed, for experts one by one. Quantizing then makes errors smaller
where inputs are large. The file has llama.cpp's GGUF form.

\b
Use text like what the model will read, about 50000 tokens of it: more helps little, and
an expert that no token chose counts as evenly important. A remainder shorter than a
window is left out.
"""


@click.command(epilog=_EPILOG)
@option("-f --file TEXT", "Text to run the model on, UTF-8; - is stdin.", PathType(), required=True)
@option(
    "-o --output FILE",
    "File to write; an existing file is replaced only if it is an importance matrix.",
    PathType(),
    required=True,
)
@option("--chunks N", "Use only the first N windows. [default: all]", click.IntRange(min=1))
@model_option
@flag("context_length", help="Tokens in a window, and in the context.", default=DEFAULT_WINDOW)
@flags("threads", "kv_type", "activation", "mmap", "kernels")
@json_option
def imatrix(
    model: Path | None,
    file: Path,
    output: Path,
    chunks: int | None,
    context_length: int,
    as_json: bool,
    **flags: object,
) -> None:
    """Measure how important the weights of a model are, for quantize."""
    content = read_text(file)
    from powerinfer.cli.model import open_llm
    from powerinfer.convert.quantize.imatrix import check_imatrix_target, write_imatrix

    check_folder(output.parent)
    check_imatrix_target(output)
    options = llm_options(flags)
    options["context_length"], options["sparsity"] = context_length, "off"
    options["device"] = "cpu"
    with open_llm(model, options) as llm:
        started = time.perf_counter()
        found = _measure(llm, content, text_name(file), chunks)
        elapsed_s = time.perf_counter() - started
    write_imatrix(output, found)
    report = _report(found, output, elapsed_s)
    if as_json:
        print_json(report)
        return
    if report["experts_without_tokens"]:
        click.echo(
            f"note: no token chose {report['experts_without_tokens']} of the experts; use more "
            "text",
            err=True,
        )
    click.echo(
        f"{output}: {len(found.entries)} matrices, {report['tokens']} tokens in "
        f"{found.chunk_count} windows of {found.chunk_size}"
    )


def _measure(llm: "LLM", content: bytes, name: str, chunks: int | None) -> "ImportanceMatrix":
    """Run the model over all windows with a progress bar."""
    from powerinfer.calibration.linear_inputs import measure_inputs
    from powerinfer.convert.quantize.imatrix import Importance, ImportanceMatrix
    from powerinfer.engine.perplexity import count_windows, text_windows

    loaded, window = llm.loaded, llm.loaded.model.context_length
    token_ids = loaded.tokenizer.encode(content)
    count = min(count_windows(token_ids, window), chunks or len(token_ids))
    token_ids = token_ids[: count * window]
    with when_stopped(BEGINS_AGAIN), ProgressBar("measuring", unit="tokens", delay_s=0.5) as bar:
        squares = measure_inputs(
            loaded.model,
            loaded.file.tensors,
            text_windows(loaded.tokenizer, token_ids, window),
            lambda done: bar(done, count * window),
        )
    entries = {
        name: Importance(found.sums.astype("f4"), found.counts.astype("f4"))
        for name, found in squares.items()
    }
    return ImportanceMatrix(entries, (name,), count, window)


def _report(found: "ImportanceMatrix", output: Path, elapsed_s: float) -> dict[str, object]:
    return {
        "path": str(output),
        "entries": len(found.entries),
        "tokens": found.chunk_count * found.chunk_size,
        "chunks": found.chunk_count,
        "chunk_size": found.chunk_size,
        "datasets": list(found.datasets),
        "experts_without_tokens": max(
            (int((entry.counts == 0).sum()) for entry in found.entries.values()), default=0
        ),
        "elapsed_s": elapsed_s,
    }


COMMAND = imatrix
