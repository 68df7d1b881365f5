"""Measure how fast a model runs on this machine, and what sparsity does to its quality.

Prefill and decode in tokens/s, with the bytes a token touches and what a plain read of the same
bytes reaches. With --quality one row per sparsity setting: speed beside perplexity.
"""

import math
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from powerinfer.cli.files import PathType, read_text
from powerinfer.cli.options import engine_options, json_option, print_json

if TYPE_CHECKING:
    from powerinfer.bench.speed import SpeedResult

__all__ = ["COMMAND"]

Command = TypeVar("Command", bound=Callable[..., Any])
DEFAULT_WINDOW = 512

_EPILOG = """\b
Examples:
  powerinfer bench -m model.gguf
  powerinfer bench -m model.gguf -t 4 --prefill 512 --decode 64 --repeats 5
  powerinfer bench -m model.gguf --json > result.json
  powerinfer bench --quality
  powerinfer bench --quality -f text.txt --settings off,exact,auto,lowbit:3
  powerinfer bench --quality -f text.txt --settings sign,lowbit:2 --errors 0.005,0.01,0.02

Prompts are random tokens. Figures are medians over the repeats, after one
round that is not counted. Close other programs first: decoding is bound by
memory, which all cores share.

--quality scores windows of -c tokens (512) as `powerinfer perplexity` does, and
decodes along the same text, so that all settings compute the same tokens. Give
a text that the model was not calibrated on.
"""


def _lengths(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Read `128,512`; nothing means that no prefill is measured."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of prompt lengths such as 128,512")
    return tuple(int(part) for part in parts)


def _names(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Read `off,exact,lowbit:2`."""
    names = tuple(part.strip().lower() for part in text.split(",") if part.strip())
    for name in names:
        if name not in ("off", "auto", "default"):
            from powerinfer.predictors import parse_kind

            parse_kind(name)
    return names


def _errors(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[float, ...]:
    """Read `0.005,0.01`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    try:
        errors = tuple(float(part) for part in parts)
    except ValueError:
        errors = (math.nan,)
    if not all(0 < error <= 1 for error in errors):
        raise click.BadParameter(f"{text!r} is not a list of errors above 0 such as 0.005,0.01")
    return errors


_QUALITY_OPTIONS = (
    click.option(
        "--quality",
        is_flag=True,
        help="Measure speed and quality of several sparsity settings on a text, one row each.",
    ),
    click.option(
        "-f",
        "--file",
        type=PathType(),
        metavar="PATH",
        help="Text for --quality, UTF-8; - is stdin. [default: the one in the package]",
    ),
    click.option(
        "--settings",
        callback=_names,
        default="",
        metavar="S,S",
        help="Settings for --quality: off, exact, default, auto or predictor kinds. "
        "[default: all that the file can serve]",
    ),
    click.option(
        "--errors",
        callback=_errors,
        default="",
        metavar="X,X",
        help="Also measure each predictor kind at these values of --max-ffn-error.",
    ),
    click.option(
        "--windows",
        "num_windows",
        type=click.IntRange(min=1),
        default=16,
        show_default=True,
        metavar="N",
        help="Most windows of the text that --quality scores.",
    ),
)


def _quality_options(command: Command) -> Command:
    for option in reversed(_QUALITY_OPTIONS):
        command = option(command)
    return command


@click.command(epilog=_EPILOG)
@click.option(
    "--prefill",
    "prefill_lengths",
    callback=_lengths,
    default="128,512",
    show_default=True,
    metavar="N,N",
    help="Prompt lengths to measure; '' measures none.",
)
@click.option(
    "--decode",
    "decode_steps",
    type=click.IntRange(min=0),
    default=32,
    show_default=True,
    metavar="N",
    help="Tokens to decode per repeat; 0 measures none.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="N",
    help="Rounds that are counted.",
)
@_quality_options
@engine_options
@json_option
def bench(
    model: Path | None,
    prefill_lengths: tuple[int, ...],
    decode_steps: int,
    repeats: int,
    quality: bool,  # noqa: FBT001
    as_json: bool,  # noqa: FBT001
    **flags: Any,
) -> None:
    """Measure how fast a model runs on this machine, and what sparsity does to its quality."""
    if quality:
        _measure_quality(model, decode_steps, repeats, flags, as_json=as_json)
        return
    for name in ("settings", "errors", "file"):
        if flags[name]:
            raise click.UsageError(f"--{name} says what --quality measures; give --quality too")
    from powerinfer.bench.speed import SpeedPlan, measure_speed
    from powerinfer.cli.model import announce, device_report, open_llm
    from powerinfer.cli.sparsity import print_recall, sparsity_report

    plan = SpeedPlan(prefill_lengths, decode_steps, repeats)
    flags["context_length"] = flags["context_length"] or plan.context_length
    with open_llm(model, flags) as llm:
        announce(llm)
        result = measure_speed(llm, plan, _show_progress if sys.stderr.isatty() else None)
        report = result.report(llm) | sparsity_report(llm.loaded.model) | device_report(llm.loaded)
        print_recall(llm.loaded.model)
    if as_json:
        print_json(report)
    else:
        _print_table(report, result)


def _measure_quality(
    model: Path | None, decode_steps: int, repeats: int, flags: dict[str, Any], *, as_json: bool
) -> None:
    """The table of --quality."""
    if decode_steps == 0:
        raise click.UsageError("--quality needs at least one step of --decode")
    from powerinfer.bench.quality_row import QualityPlan
    from powerinfer.cli.quality import run_quality

    plan = QualityPlan(
        settings=flags["settings"],
        errors=flags["errors"],
        window=flags["context_length"] or DEFAULT_WINDOW,
        num_windows=flags["num_windows"],
        decode_steps=decode_steps,
        repeats=repeats,
    )
    file = flags["file"]
    text = None if file is None else read_text(file)
    run_quality(model, plan, text, flags, as_json=as_json)


def _show_progress(done: int, total: int) -> None:
    click.echo(f"\rround {done + 1} of {total}\r", err=True, nl=False)


def _print_table(report: dict[str, Any], result: "SpeedResult") -> None:
    from rich.console import Console
    from rich.table import Table

    from powerinfer.engine.memory import format_bytes

    kernels = report["kernels"] + ("" if report["device"] == "cpu" else f" and {report['device']}")
    table = Table(title=f"{report['model']}, {report['threads']} threads, {kernels}")
    for name in ("what", "median", "range"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for length, times in result.prefill_s.items():
        table.add_row(f"prefill {length}", *_rates(times, length))
    if result.decode_s:
        table.add_row("decode", *_rates(result.decode_s, 1))
        if report["predicted_tokens_per_s"]:
            table.add_row(
                "decode, predicted", f"{report['predicted_tokens_per_s']:.1f} tokens/s", ""
            )
        table.add_row("bytes per token", format_bytes(report["bytes_per_token"]), "")
        table.add_row("decode bandwidth", f"{report['gb_per_s']:.2f} GB/s", "")
    table.add_row("plain read of the weights", f"{report['read_gb_per_s']:.2f} GB/s", "")
    for key, what in (
        ("read_share", "decode / plain read"),
        ("active_share", "active neurons"),
        ("predicted_share", "predicted neurons"),
        ("python_share", "Python's share of a step"),
    ):
        if report.get(key) is not None:
            table.add_row(what, f"{100 * report[key]:.1f} %", "")
    Console().print(table)


def _rates(times: list[float], tokens: int) -> tuple[str, str]:
    """Median and range of tokens/s."""
    rates = sorted(tokens / time for time in times)
    return f"{statistics.median(rates):.1f} tokens/s", f"{rates[0]:.1f} - {rates[-1]:.1f}"


COMMAND = bench
