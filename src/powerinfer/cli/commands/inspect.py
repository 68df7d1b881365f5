"""Show what a model file contains, or what this machine computes with.

Reads only the header, so large files open at once; files that cannot run are shown too.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import ModelPath, model_file
from powerinfer.cli.flags.flags import flag
from powerinfer.cli.flags.options import json_option, model_option, option, print_json
from powerinfer.cli.report.tables import line_width, print_paragraph, print_table, printable

if TYPE_CHECKING:
    from powerinfer.cli.report.summary import FFNSummary, Summary
    from powerinfer.gguf import GGUFFile
    from powerinfer.values import JSON

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer inspect                      the bundled model
  powerinfer inspect model.gguf --tensors
  powerinfer inspect model.gguf --json
  powerinfer inspect --chat-template model.gguf > template.jinja
  powerinfer inspect --machine            CPU, kernels in use, read bandwidth, GPUs

-m MODEL works too, as in the other commands.
"""
_LONGEST_VALUE = 60


@click.command(epilog=_EPILOG)
@click.argument("path", metavar="[MODEL]", type=ModelPath(), required=False)
@model_option
@option("--tensors", "List every tensor: name, shape, format, bytes.")
@option("--chat-template", "Print the chat template, whole, and nothing else.")
@option("--machine", "Show CPU features, kernels, read bandwidth and GPUs instead.")
@flag("kernels")
@json_option
def inspect(
    path: Path | None,
    model: Path | None,
    tensors: bool,
    chat_template: bool,
    machine: bool,
    kernels: str | None,
    as_json: bool,
) -> None:
    """Show what MODEL contains: architecture, sizes, formats, tokenizer, sparsity."""
    if path is not None and model is not None:
        raise click.UsageError("MODEL and -m both name a model; give one of them")
    model = path or model
    if machine:
        if model is not None or tensors or chat_template:
            what = "--tensors" if tensors else "--chat-template" if chat_template else "a model"
            raise click.UsageError(f"--machine describes this machine: leave it or {what} out")
        from powerinfer.cli.report.machine import machine_report

        _show(machine_report(kernels, as_json=as_json), as_json=as_json)
        return
    if chat_template and (tensors or as_json):
        raise click.UsageError(
            "--chat-template prints the template alone: leave out --tensors and --json, which has "
            "it among the metadata"
        )
    from powerinfer.cli.report.summary import summarize, tensor_rows
    from powerinfer.gguf import open_gguf

    file = open_gguf(model_file(model))
    if chat_template:
        _print_template(file)
        return
    summary = summarize(file)
    if as_json:
        print_json({**summary, "tensors": tensor_rows(file)} if tensors else summary)
        return
    _show(_report(summary), as_json=False)
    _print_metadata(summary["metadata"])
    if tensors:
        _print_tensors(file)


def _print_template(file: "GGUFFile") -> None:
    """Print the template as it is; on a terminal without control characters."""
    from powerinfer.gguf import keys

    template = file.metadata.get(keys.CHAT_TEMPLATE)
    if not isinstance(template, str) or not template:
        raise click.ClickException(
            f"{file.path.name} has no chat template ({keys.CHAT_TEMPLATE}); "
            "`powerinfer chat` writes a plain dialogue for it"
        )
    shown = printable(template, keep="\n\t") if sys.stdout.isatty() else template
    # Templates are read without the line end that ends their file.
    click.echo(shown, nl=not template.endswith("\n"))


def _report(summary: "Summary") -> dict[str, object]:
    """Names and values of the table for people."""
    from powerinfer.cli.report.ffn_storage import describe_experts

    sizes, ffn, tokenizer = summary["sizes"], summary["ffn"], summary["tokenizer"]
    rows: dict[str, object] = {
        "file": ", ".join(summary["files"]),
        "container": f"{summary['container']} version {summary['version']}",
        "size": f"{summary['bytes']:,} bytes",
        "identity": summary["identity"],
        "architecture": summary["architecture"],
        "name": summary["name"],
        "cannot be run": summary["problem"],
        "parameters": f"{summary['parameters']:,}"
        + (f" at {bits:.2f} bits" if (bits := summary["bits_per_weight"]) else ""),
    }
    # Heads and neurons that the model does not have would be a size of 0.
    rows.update({name.replace("_", " "): value for name, value in (sizes or {}).items() if value})
    if summary["mtp_blocks"]:
        rows["MTP blocks"] = (
            f"{summary['mtp_blocks']} at the end, which predict further tokens: unused"
        )
    rows["formats"] = ", ".join(
        f"{name} {row['tensors']} tensors ({row['bytes'] / 2**20:.1f} MiB)"
        + ("" if row["is_supported"] else " NOT SUPPORTED")
        for name, row in summary["formats"].items()
    )
    if summary["experts"]:
        rows["experts"] = describe_experts(summary["experts"])
    rows["activation"] = ffn["activation"]
    if ffn["is_down_transposed"] is not None:
        rows["down projection"] = _down_projection(ffn)
    if ffn["predictor_ranks"]:
        low, high = ffn["predictor_ranks"]
        rows["predictors"] = f"{ffn['predictor_layers']} layers, rank {low} to {high}"
    rows["layout"] = ffn["layout"]
    rows["sparse threshold"] = ffn["sparse_threshold"]
    if tokenizer:
        rows["tokenizer"] = ", ".join(
            f"{name.replace('_', ' ')} {value}"
            for name, value in tokenizer.items()
            if value is not None
        )
    return {name: value for name, value in rows.items() if value not in (None, "")}


def _down_projection(ffn: "FFNSummary") -> str:
    from powerinfer.cli.report.ffn_storage import packing_advice

    if ffn["is_down_transposed"]:
        return "a row per neuron"
    if not ffn["is_sparse"]:
        return "plain"
    advice = packing_advice(ffn["plain_down_bytes"], ffn["plain_down_formats"], ffn["bytes"])
    return advice or "plain"


def _show(rows: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    from powerinfer.cli.report.machine import Lines

    rows = {name: value for name, value in rows.items() if value is not None}
    width, line = max(map(len, rows), default=0), line_width()
    for name, value in rows.items():
        texts = value if isinstance(value, Lines) else (_text(value),)
        for label, text in zip((name, *[""] * (len(texts) - 1)), texts, strict=True):
            shown = printable(text)
            longest_word = max(map(len, shown.split()), default=0)
            # A path that does not fit next to the names gets a line of its own.
            is_beside = line is None or width + 2 + longest_word <= line
            print_paragraph(f"{label:<{width}}  {shown}", hanging=width + 2 if is_beside else 2)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple | set) else str(value)


def _print_metadata(metadata: "dict[str, JSON]") -> None:
    click.echo("\nmetadata")
    for key, value in metadata.items():
        if isinstance(value, dict):
            text = f"array of {value['length']} {value['type']}"
        else:
            text = printable(str(value))
        short = text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
        print_paragraph(f"{printable(key)} = {short}", indent=2, hanging=4)


def _print_tensors(file: "GGUFFile") -> None:
    click.echo("\ntensors")
    rows = [
        (
            printable(tensor.name),
            tensor.format,
            f"{tensor.num_bytes:,}",
            " x ".join(map(str, tensor.shape)) or "scalar",
        )
        for tensor in file.tensors.values()
    ]
    if rows:
        print_table(rows, left=(0, 1, 3), indent=2)


COMMAND = inspect
