"""Write a model with fewer bits per weight.

Types, and which tensor gets which of them, are llama.cpp's.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer._files import decimal_bytes
from powerinfer.cli.files import ModelPath, PathType, check_folder, model_file
from powerinfer.cli.flags.flags import flag
from powerinfer.cli.flags.options import json_option, option, print_json
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped

if TYPE_CHECKING:
    from powerinfer.convert.quantize.mixture import KeptFormat
    from powerinfer.convert.quantize.plan import QuantizedTensor
    from powerinfer.convert.quantize.quantize import QuantizeReport

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer quantize model-f16.gguf model-q4.gguf Q4_K_M
  powerinfer imatrix -m model-f16.gguf -f text.txt -o model.imatrix.gguf
  powerinfer quantize model-f16.gguf model-q4.gguf Q4_0 --imatrix model.imatrix.gguf
  powerinfer quantize model-f16.gguf model-q8.gguf Q8_0 --keep 'blk.0.*=F16'

\b
TYPE is one of
  Q4_0 Q4_1 Q5_0 Q5_1 Q8_0           one format for nearly all matrices
  Q4_K_S Q4_K_M Q5_K_S Q5_K_M Q6_K   better at the same size; _M gives the matrices
                                     that matter most more bits than _S
  F16 BF16                           16 bits; also to undo quantizing (not its loss)

\b
Norms, biases and routers are kept, the output head gets more bits, and rows that a
format cannot hold get the next larger one. Predictors become Q4_0 in Q4_0 files and
Q8_0 in all other quantized files. PowerInfer's own files and packed files remain such
files.

\b
Start from F32, F16 or BF16. Quantized sources are accepted, with a note: errors add up.
A tensor that takes no more bits than the new type is copied.

\b
The relative error printed is that of the weights: the root of the summed squared
differences over the summed squares. `powerinfer perplexity` measures the model's.
"""


@click.command(epilog=_EPILOG)
@click.argument("model", metavar="IN", type=ModelPath())
@click.argument("output", metavar="OUT", type=PathType())
@click.argument("file_type", metavar="TYPE")
@option(
    "--imatrix FILE",
    "Importance of the weights, from `powerinfer imatrix` or llama-imatrix: weights with "
    "large inputs get smaller errors.",
    PathType(),
)
@option(
    "--keep PATTERN=TYPE",
    "Store matrices whose names match a pattern, with the wildcards *, ? and [...], in this "
    "format (f32, f16, bf16, q8_0, q4_k, ...); repeatable, the first match counts.",
    name="kept",
    multiple=True,
)
@flag("threads", help="CPU threads. [default: physical cores]")
@flag("kernels", help="Instruction set of the encoders; all write the same bytes.")
@json_option
def quantize(
    model: Path,
    output: Path,
    file_type: str,
    imatrix: Path | None,
    kept: tuple[str, ...],
    threads: int | None,
    kernels: str | None,
    as_json: bool,
) -> None:
    """Write the model IN as OUT, with weights of TYPE."""
    from powerinfer.convert.quantize.file_types import find_file_type
    from powerinfer.convert.quantize.imatrix import read_imatrix
    from powerinfer.convert.quantize.plan import QuantizeOptions
    from powerinfer.convert.quantize.quantize import quantize as quantize_model
    from powerinfer.convert.rewriting import left_out
    from powerinfer.gguf import open_gguf
    from powerinfer.store.threads import default_threads

    found = find_file_type(file_type)
    wishes = [_wish(text) for text in kept]
    file = open_gguf(model_file(model))
    importance = None if imatrix is None else read_imatrix(imatrix)
    check_folder(output.parent)
    options = QuantizeOptions(
        found,
        threads or default_threads(beside_gpu=False),
        wishes,
        importance,
        kernels,
    )
    with when_stopped(BEGINS_AGAIN), ProgressBar("quantizing", unit="bytes") as progress:
        report = quantize_model(file, output, options, progress)
    if as_json:
        print_json(_as_json(report))
        return
    for line in [*left_out(file), *_notes(report, has_imatrix=importance is not None)]:
        click.echo(f"note: {line}", err=True)
    _print(report)


def _wish(text: str) -> "KeptFormat":
    """Parse one value of --keep."""
    from powerinfer.convert.quantize.mixture import KeptFormat
    from powerinfer.quant import format_names, get_format

    pattern, _, name = text.rpartition("=")
    if not pattern or not name:
        raise click.UsageError(
            f"--keep {text!r}: expected PATTERN=TYPE, such as 'output.weight=q8_0'"
        )
    names = [each for each in format_names() if get_format(each).can_encode]
    if name.lower() not in names:
        raise click.UsageError(f"--keep {text!r}: {name} is not one of {', '.join(names)}")
    return KeptFormat(pattern, name.lower())


def _notes(report: "QuantizeReport", *, has_imatrix: bool) -> list[str]:
    """Notes on surprising properties of the file."""
    notes = []
    again = [tensor for tensor in report.tensors if tensor.is_again]
    if again:
        formats = sorted({tensor.source_format for tensor in again})
        notes.append(
            f"{len(again)} matrices were already quantized ({', '.join(formats)}): errors add up; "
            "a source in F16, BF16 or F32 gives a better file"
        )
    if has_imatrix:
        without = [tensor for tensor in report.tensors if _lacks_importance(tensor)]
        if without:
            notes.append(
                f"{len(without)} matrices were quantized without importance, such as "
                f"{without[0].name}"
            )
    return notes


def _lacks_importance(tensor: "QuantizedTensor") -> bool:
    """True if the importance matrix lacks an entry that this tensor should have."""
    from powerinfer.convert.quantize.mixture import is_row_per_neuron
    from powerinfer.quant import get_format

    is_quantized = (
        tensor.format != tensor.source_format and get_format(tensor.format).block_size > 1
    )
    # The others serve as tables or have a single input in each row.
    may_have = tensor.name.startswith("blk.") and not is_row_per_neuron(tensor.name)
    return is_quantized and may_have and ".fc" not in tensor.name and not tensor.has_importance


def _print(report: "QuantizeReport") -> None:
    """Print a line for each format, and one for the file."""
    formats: dict[str, list[QuantizedTensor]] = {}
    for tensor in report.tensors:
        formats.setdefault(tensor.format, []).append(tensor)
    for name, tensors in formats.items():
        errors = [tensor.error.relative for tensor in tensors]
        error = f", relative error up to {max(errors):.2e}" if max(errors) else ""
        click.echo(f"{name}: {len(tensors)} tensors{error}")
    size = report.num_bytes / 2**20
    click.echo(
        f"{report.path}: {report.file_type.name}, {size:.1f} MiB of "
        f"{report.source_bytes / 2**20:.1f}, {decimal_bytes(1e9 * report.gb_per_s)}/s"
    )


def _as_json(report: "QuantizeReport") -> dict[str, object]:
    return {
        "path": str(report.path),
        "type": report.file_type.name,
        "bytes": report.num_bytes,
        "source_bytes": report.source_bytes,
        "elapsed_s": report.elapsed_s,
        "gb_per_s": report.gb_per_s,
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "source_type": tensor.source_format,
                "type": tensor.format,
                "importance": tensor.has_importance,
                "relative_error": tensor.error.relative,
            }
            for tensor in report.tensors
        ],
    }


COMMAND = quantize
