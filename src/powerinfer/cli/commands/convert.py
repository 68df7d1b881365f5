"""Write a Hugging Face checkpoint as one model file.

SOURCE is the folder of a checkpoint, or hf:ORG/NAME[@REVISION] on the Hugging Face Hub:
config.json, the tokenizer's files, and the weights as safetensors, or as .bin files, which need
torch. Everything is checked before anything is written; the tokenizer must encode texts as the
checkpoint's own does.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer._files import decimal_bytes
from powerinfer.cli.files import PathType, check_folder
from powerinfer.cli.flags.options import json_option, option, predictors_option, print_json
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped

if TYPE_CHECKING:
    from powerinfer.convert.convert import ConvertReport

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer convert Llama-3.2-1B -o llama.gguf
  powerinfer convert hf:SparseLLM/prosparse-llama-2-7b -o prosparse.gguf
  powerinfer convert ReluLLaMA-7B --predictors ReluLLaMA-7B-Predictor -o relu.gguf
  powerinfer convert Llama-3.2-1B -o for-llama-cpp.gguf --plain --outtype q8_0

SOURCE is the folder of a checkpoint, or hf:ORG/NAME[@REVISION]. Models whose
activation makes neurons exactly zero (ReLU, dReLU, FatReLU, ReLU^2) get a transposed
down projection, so that these neurons are never read; --plain leaves it out. With
predictors the file is in PowerInfer's own format, which the original program runs
too. Code in a checkpoint is never run.
"""


@click.command(epilog=_EPILOG)
@click.argument("source", metavar="SOURCE")
@option(
    "-o --output FILE",
    "File to write, which must not exist yet; its folder is made.",
    PathType(),
    required=True,
)
@option(
    "--outtype",
    "Format of the matrices; auto keeps that of the checkpoint, or takes f16 with predictors.",
    click.Choice(["auto", "f32", "f16", "bf16", "q8_0"]),
    default="auto",
)
@predictors_option
@option("--plain", "Write no transposed tensors, so that llama.cpp can read the file.")
@json_option
def convert(
    source: str,
    output: Path,
    outtype: str,
    predictors: Path | None,
    plain: bool,
    as_json: bool,
) -> None:
    """Write the Hugging Face checkpoint SOURCE as one model file."""
    from powerinfer.convert.convert import convert as convert_checkpoint
    from powerinfer.convert.source import checkpoint_folder

    check_folder(output.parent)
    with ProgressBar("downloading", unit="bytes") as fetching:
        folder = checkpoint_folder(source, fetching)
    with when_stopped(BEGINS_AGAIN), ProgressBar("converting", unit="bytes") as progress:
        report = convert_checkpoint(
            folder,
            output,
            outtype=outtype,
            predictors=predictors,
            is_plain=plain,
            progress=progress,
        )
    if as_json:
        print_json(_as_json(report))
        return
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(f"{report.path}: {_summary(report)}")


def _summary(report: "ConvertReport") -> str:
    kind = "PowerInfer " if report.magic == "PWRI" else ""
    return (
        f"{kind}{report.architecture}, {report.num_tensors} tensors, {report.outtype}, "
        f"{decimal_bytes(report.num_bytes)}, {decimal_bytes(1e9 * report.gb_per_s)}/s"
    )


def _as_json(report: "ConvertReport") -> dict[str, object]:
    return {
        "path": str(report.path),
        "architecture": report.architecture,
        "magic": report.magic,
        "tensors": report.num_tensors,
        "bytes": report.num_bytes,
        "outtype": report.outtype,
        "seconds": report.seconds,
        "gb_per_s": report.gb_per_s,
        "notes": list(report.notes),
    }


COMMAND = convert
