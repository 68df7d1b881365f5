"""Write a model in a layout that lets inactive neurons be skipped completely.

The new file stores the down projection transposed, one row per neuron, so that exact and predicted
sparsity can skip its rows too. With predictors it is in PowerInfer's own format.
"""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import ModelPath, PathType, check_folder, model_file
from powerinfer.cli.flags.flags import flag
from powerinfer.cli.flags.options import json_option, option, predictors_option, print_json
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped

if TYPE_CHECKING:
    from powerinfer.convert.pack import PackedPredictors, PackReport

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer pack model.gguf -o packed.gguf
  powerinfer pack bamboo.gguf -o packed.gguf --activation drelu
  powerinfer pack model.gguf --predictors predictors -o sparse.gguf

F32, F16 and BF16 are copied exactly. Q4_0, Q8_0 and MXFP4 are encoded again in the
same format, other quantized types as Q8_0; the command prints the relative error.
Experts are packed too; those stored one by one become one tensor. llama.cpp
rejects packed files.

With --predictors the file is in PowerInfer's own format, which the original program
runs too: Llama with ReLU or dReLU, Bamboo, Falcon and OPT with ReLU. Its FFN is F16
or Q4_0, as the original computes nothing else; the folder's config.json may set the
sparse_threshold, and its activation/ is copied next to the file. Other models of the
ReLU family, and all with experts, become GGUF files with predictors, which --sparsity
mlp runs here.
"""


@click.command(epilog=_EPILOG)
@click.argument("model", metavar="[MODEL]", type=ModelPath(), required=False)
@option(
    "-o --output FILE",
    "File to write; an existing file is replaced only if pack wrote it.",
    PathType(),
    required=True,
)
@option("--layout NAME", "How to store the FFN.", default="rows")
@flag(
    "activation",
    help="Also store the FFN activation in the file: silu, gelu, relu, drelu, relu2 or "
    "fatrelu:THRESHOLD.",
)
@predictors_option
@json_option
def pack(
    model: Path | None,
    output: Path,
    layout: str,
    activation: str | None,
    predictors: Path | None,
    as_json: bool,
) -> None:
    """Write MODEL in a layout that lets inactive neurons be skipped completely.

    MODEL defaults to the bundled one, which has this layout and takes only --predictors.
    """
    from powerinfer.convert.pack import pack as pack_model
    from powerinfer.convert.powerinfer.pack_predictors import pack_with_predictors
    from powerinfer.convert.rewriting import left_out
    from powerinfer.gguf import open_gguf
    from powerinfer.models import architecture_of, read_config
    from powerinfer.models.activation import activation_metadata, parse_activation

    file = open_gguf(model_file(model))
    # Before anything is written: `run` would refuse the packed file for the same reason.
    read_config(file, architecture_of(file), activation)
    metadata = activation_metadata(parse_activation(activation)) if activation else {}
    check_folder(output.parent)
    with when_stopped(BEGINS_AGAIN), ProgressBar("packing", unit="bytes") as progress:
        report = (
            pack_model(file, output, layout=layout, metadata=metadata, progress=progress)
            if predictors is None
            else pack_with_predictors(
                file, predictors, output, layout=layout, activation=activation, progress=progress
            )
        )
    if as_json:
        print_json(_as_json(report))
        return
    for line in [*left_out(file), *_changed_formats(report), *report.notes, *_useless(output)]:
        click.echo(f"note: {line}", err=True)
    click.echo(f"{report.path}: {_summary(report)}")


def _changed_formats(report: "PackReport") -> list[str]:
    """Notes on formats that had to change."""
    changed = sorted(
        {
            (tensor.source_format, tensor.format)
            for tensor in report.packed
            if tensor.format != tensor.source_format
        }
    )
    if report.predictors and report.predictors.is_original:
        return [
            f"{before} is stored as {after}, as the original PowerInfer needs it"
            for before, after in changed
        ]
    return [
        f"{before} cannot be encoded again in these shapes; stored as {after}"
        for before, after in changed
    ]


def _useless(path: Path) -> list[str]:
    """A note if the packed model has no neurons that can be skipped."""
    from powerinfer.gguf import open_gguf
    from powerinfer.models import architecture_of, read_config

    file = open_gguf(path)
    activation = read_config(file, architecture_of(file)).activation
    if activation.is_sparse:
        return []
    lossy = ", or skip small values with --activation-threshold" if activation.is_cuttable else ""
    return [
        f"no neuron can be skipped with the FFN activation {activation}; if the model was trained "
        f"with another one, name it with --activation{lossy}"
    ]


def _summary(report: "PackReport") -> str:
    what = f"layout {report.layout}, {len(report.packed)} tensors packed"
    if report.predictors:
        what = _predictors(report.predictors)
    if report.is_exact:
        return f"{what}, exact"
    return f"{what}, largest relative error {report.largest_error:.2e}"


def _predictors(packed: "PackedPredictors") -> str:
    low, high = min(packed.ranks), max(packed.ranks)
    rank = f"rank {low}" if low == high else f"ranks {low} to {high}"
    threshold = 0.0 if packed.threshold is None else packed.threshold
    name = f"PowerInfer {packed.architecture}" if packed.is_original else packed.architecture
    return (
        f"{name}, predictors of {rank} with threshold {threshold:g}, "
        f"{packed.share:.1%} of the model's parameters"
    )


def _as_json(report: "PackReport") -> dict[str, object]:
    found: dict[str, object] = {
        "path": str(report.path),
        "layout": report.layout,
        "bytes": report.num_bytes,
        "exact": report.is_exact,
        "largest_relative_error": report.largest_error,
        "tensors": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "source_format": tensor.source_format,
                "format": tensor.format,
                "relative_error": tensor.error.relative if tensor.error else 0.0,
            }
            for tensor in report.packed
        ],
    }
    if report.predictors:
        found["predictors"] = asdict(report.predictors)
        found["notes"] = list(report.notes)
    return found


COMMAND = pack
