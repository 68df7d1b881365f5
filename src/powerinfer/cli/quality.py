"""`powerinfer bench --quality`: progress, one table with a row per setting, or JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.options import print_json
from powerinfer.cli.progress import ProgressBar
from powerinfer.cli.tables import percent, print_paragraph, print_table
from powerinfer.engine.llm_options import LLMOptions
from powerinfer.engine.options import CPU, EngineOptions, engine_options

if TYPE_CHECKING:
    from powerinfer.bench.quality_row import QualityPlan, QualityRow

__all__ = ["run_quality"]

_COLUMNS = (
    *("setting", "tokens/s", "speedup", "range", "bytes/token", "predictor", "GB/s", "active"),
    *("density", "recall", "FFN error", "perplexity", "change", "agreement"),
)
_LEGEND = (
    "speedup is over dense decoding, run in turns, the median of the repeats, range their smallest "
    "and largest; tokens/s is the dense model's times the speedup; predictor is the part of "
    "bytes/token that predictors read; active neurons were computed and used, density is the share "
    "that predictors let pass; recall and FFN error are those of the worst layer; agreement is how "
    "often the likeliest token is the dense model's"
)
_BUNDLED = (
    "text: the one in the package, which `powerinfer calibrate` may have seen: give another with "
    "-f FILE to judge a calibration"
)


def run_quality(
    model: Path | None,
    plan: "QualityPlan",
    text: bytes | None,
    given: LLMOptions,
    *,
    as_json: bool,
) -> None:
    """Measure and print.

    Args:
        model: value of `-m`.
        plan: what to measure.
        text: UTF-8; None takes the text in the package.
        given: options of the command.
        as_json: print one object instead of a table.

    Raises:
        click.UsageError: a flag names one setting, where --settings and --errors name many.
        PowerInferError: the model cannot be loaded, or a setting does not fit it.
    """
    options = _checked(given)
    from powerinfer.bench.machine import describe_machine
    from powerinfer.engine.calibration.text import bundled_text

    if text is None:
        text = bundled_text().encode()
        print_paragraph(_BUNDLED, err=True)
    rows = _measured(model, plan, text, replace(options, device=CPU))
    if as_json:
        print_json({"rows": [row.as_json() for row in rows], "machine": describe_machine()})
    else:
        _print(rows)


def _checked(given: LLMOptions) -> EngineOptions:
    """The options of the command, of which none may be what the settings vary."""
    for name in ("sparsity", "max_ffn_error", "recall", "measure_recall"):
        if given.get(name):
            raise click.UsageError(
                f"--quality measures --settings at --errors; leave --{name.replace('_', '-')} out"
            )
    options = engine_options(**given)
    if options.wants_gpu:
        raise click.UsageError("--quality measures on the CPU: leave --device and GPU options out")
    return options


def _print(rows: Sequence["QualityRow"]) -> None:
    print_table([_COLUMNS, *map(_cells, rows)], left=(0,))
    for row in rows:
        if len(set(row.layer_kinds)) > 1:
            counted = Counter(row.layer_kinds).most_common()
            kinds = ", ".join(f"{kind} in {count} layers" for kind, count in counted)
            print_paragraph(f"{row.setting}: {kinds}")
    print_paragraph(_LEGEND, err=True)


def _measured(
    model: Path | None, plan: "QualityPlan", text: bytes, options: EngineOptions
) -> list["QualityRow"]:
    """All rows, behind a progress bar."""
    from powerinfer.bench.quality import measure_quality

    with ProgressBar("loading", unit="windows") as bar:

        def show(setting: str, done: int, total: int) -> None:
            bar(done, total, setting)

        return [each.row for each in measure_quality(model, options, plan, text, show)]


def _range(row: "QualityRow") -> str:
    """Smallest and largest speed-up; a single repeat does not tell how they spread."""
    if row.setting == "off" or len(row.decode_s) == 1:
        return "-"
    return "-".join(f"{each:.2f}" for each in row.speedup_range)


def _predictor_bytes(row: "QualityRow") -> str:
    from powerinfer.engine.memory import format_bytes

    found = row.predictor_bytes_per_token
    return "-" if found is None else format_bytes(found)


def _cells(row: "QualityRow") -> tuple[str, ...]:
    from powerinfer.engine.memory import format_bytes

    name = row.setting if row.setting != "default" else f"default: {row.sparsity}"
    return (
        name,
        f"{row.decode_tokens_per_s:.1f}",
        f"{row.speedup:.2f}x",
        _range(row),
        format_bytes(row.bytes_per_token),
        _predictor_bytes(row),
        f"{row.gb_per_s:.2f}",
        percent(row.active_share),
        percent(row.predicted_share),
        percent(row.worst_recall, 2),
        "-" if row.worst_ffn_error is None else f"{row.worst_ffn_error:.4f}",
        f"{row.perplexity:.4f}",
        f"{100 * (row.perplexity_ratio - 1):+.2f} %",
        percent(row.agreement, 2),
    )
