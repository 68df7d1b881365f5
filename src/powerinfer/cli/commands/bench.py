"""Measure how fast a model runs on this machine.

Prefill and decode in tokens/s, with the bytes a token touches and what a plain read of the same
bytes reaches.
"""

import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.options import engine_options, json_option, print_json

if TYPE_CHECKING:
    from powerinfer.bench.speed import SpeedResult

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer bench -m model.gguf
  powerinfer bench -m model.gguf -t 4 --prefill 512 --decode 64 --repeats 5
  powerinfer bench -m model.gguf --json > result.json

Prompts are random tokens. Figures are medians over the repeats, after one
round that is not counted. Close other programs first: decoding is bound by
memory, which all cores share.
"""


def _lengths(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """Read `128,512`; nothing means that no prefill is measured."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of prompt lengths such as 128,512")
    return tuple(int(part) for part in parts)


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
@engine_options
@json_option
def bench(
    model: Path | None,
    prefill_lengths: tuple[int, ...],
    decode_steps: int,
    repeats: int,
    as_json: bool,  # noqa: FBT001
    **flags: Any,
) -> None:
    """Measure how fast a model runs on this machine."""
    from powerinfer.bench.speed import SpeedPlan, measure_speed
    from powerinfer.cli.model import describe, open_llm
    from powerinfer.cli.sparsity import print_recall, sparsity_report

    plan = SpeedPlan(prefill_lengths, decode_steps, repeats)
    flags["context_length"] = flags["context_length"] or plan.context_length
    with open_llm(model, flags) as llm:
        click.echo(describe(llm), err=True)
        result = measure_speed(llm, plan, _show_progress if sys.stderr.isatty() else None)
        report = result.report(llm) | sparsity_report(llm.loaded.model)
        print_recall(llm.loaded.model)
    if as_json:
        print_json(report)
    else:
        _print_table(report, result)


def _show_progress(done: int, total: int) -> None:
    click.echo(f"\rround {done + 1} of {total}\r", err=True, nl=False)


def _print_table(report: dict[str, Any], result: "SpeedResult") -> None:
    from rich.console import Console
    from rich.table import Table

    from powerinfer.engine.memory import format_bytes

    table = Table(title=f"{report['model']}, {report['threads']} threads, {report['kernels']}")
    for name in ("what", "median", "range"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for length, times in result.prefill_s.items():
        table.add_row(f"prefill {length}", *_rates(times, length))
    if result.decode_s:
        table.add_row("decode", *_rates(result.decode_s, 1))
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
