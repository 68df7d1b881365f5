"""The tables of `powerinfer bench --quality`: a row for each setting, a table for each task."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from powerinfer.cli.report.evaluation import print_task, print_task_legend, shown_setting
from powerinfer.cli.report.quality_results import QualityResults
from powerinfer.cli.report.tables import percent, print_paragraph, print_table
from powerinfer.store.memory import format_bytes

if TYPE_CHECKING:
    from powerinfer.bench.quality_row import QualityRow
    from powerinfer.evaluation.task import Task

__all__ = ["print_quality"]

_COLUMNS = (
    *("setting", "tokens/s", "speedup", "range", "bytes/token", "predictor", "GB/s", "active"),
    *("density", "recall", "FFN error", "perplexity", "change", "agreement"),
)
_LEGEND = (
    "speedup is the median over the repeats, against dense decoding in turns, and range the "
    "smallest and largest; tokens/s is the dense model's times the speedup; predictor is the part "
    "of bytes/token that predictors read; active neurons were computed and used, density is the "
    "share that predictors let pass; recall and FFN error are those of the worst layer; agreement "
    "is how often the likeliest token is the dense model's"
)
_TASK_LEGEND = "; the column of a task is the accuracy on it"


def print_quality(results: QualityResults, tasks: "Sequence[Task]") -> None:
    """Print the tables; there is at least one setting."""
    rows = [each.row for each in results.settings]
    on_tasks = {task.name: results.task_rows(task.name) for task in tasks}
    cells = (
        (
            *_cells(row),
            *(percent(found[row.setting].accuracy) for found in on_tasks.values()),
        )
        for row in rows
    )
    print_table([(*_COLUMNS, *on_tasks), *cells], left=(0,))
    _note_mixed_kinds(rows)
    print_paragraph(_LEGEND + (_TASK_LEGEND if tasks else ""), err=True)
    names = {row.setting: shown_setting(row.setting, row.sparsity) for row in rows}
    if tasks:
        click.echo()
    for task in tasks:
        found = on_tasks[task.name]
        print_task(task, {names[setting]: row for setting, row in found.items()})
    print_task_legend(tasks)


def _note_mixed_kinds(rows: "Sequence[QualityRow]") -> None:
    """Print the kinds of settings whose layers differ."""
    for row in rows:
        if len(set(row.layer_kinds)) > 1:
            counted = Counter(row.layer_kinds).most_common()
            kinds = ", ".join(f"{kind} in {count} layers" for kind, count in counted)
            print_paragraph(f"{row.setting}: {kinds}")


def _range(row: "QualityRow") -> str:
    """Smallest and largest speedup; a single repeat has no range."""
    if row.setting == "off" or len(row.decode_s) == 1:
        return "-"
    return "-".join(f"{each:.2f}" for each in row.speedup_range)


def _cells(row: "QualityRow") -> tuple[str, ...]:
    own_bytes = row.predictor_bytes_per_token
    return (
        shown_setting(row.setting, row.sparsity),
        f"{row.decode_tokens_per_s:.1f}",
        f"{row.speedup:.2f}x",
        _range(row),
        format_bytes(row.bytes_per_token),
        "-" if own_bytes is None else format_bytes(own_bytes),
        f"{row.gb_per_s:.2f}",
        percent(row.active_share),
        percent(row.predicted_share),
        percent(row.worst_recall, 2),
        "-" if row.worst_ffn_error is None else f"{row.worst_ffn_error:.4f}",
        f"{row.perplexity:.4f}",
        f"{100 * (row.perplexity_ratio - 1):+.2f} %",
        percent(row.agreement, 2),
    )
