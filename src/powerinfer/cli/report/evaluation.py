"""`powerinfer eval`: progress, one table for each task, or JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.flags.options import print_json
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar, when_stopped
from powerinfer.cli.report.tables import change, percent, print_paragraph, print_table

if TYPE_CHECKING:
    from powerinfer.evaluation.answers import TaskRow
    from powerinfer.evaluation.evaluate import SettingResult, TextRow
    from powerinfer.evaluation.task import Task
    from powerinfer.options.options import EngineOptions

__all__ = ["print_task", "print_task_legend", "run_evaluation", "shown_setting"]

_HEAD = ("setting", "accuracy", "+/-", "difference", "+/-", "equal answers")
_NORMALIZED_HEAD = ("per character", "+/-")
_TEXT_HEAD = ("setting", "perplexity", "+/-", "change")
_LEGEND = (
    "+/- is one standard error, paired for differences to off, which answered the same items; "
    "equal answers are those that off gave too"
)
_NORMALIZED_LEGEND = "; per character: accuracy when the likeliest choice for its length counts"


def run_evaluation(
    model: Path | None,
    options: "EngineOptions",
    tasks: "Sequence[Task]",
    settings: Sequence[str],
    text: bytes | None,
    *,
    as_json: bool,
) -> None:
    """Measure and print; `text` is UTF-8 to measure the perplexity of.

    Raises:
        PowerInferError: lm-eval is not installed, the model cannot be loaded, or an item or a
            setting does not fit it.
    """
    from powerinfer.evaluation.installed import prepare_lm_eval

    version = prepare_lm_eval("eval")
    from powerinfer.evaluation.evaluate import EvalPlan, evaluate_settings

    plan = EvalPlan(tuple(tasks), tuple(settings), text)
    with when_stopped(BEGINS_AGAIN), ProgressBar("loading") as bar:

        def show(what: str, done: int, total: int) -> None:
            bar(done, total, what)

        results = list(evaluate_settings(model, options, plan, show))
    if as_json:
        print_json(_report(results, plan.tasks, version))
        return
    for task in plan.tasks:
        print_task(
            task,
            {shown_setting(each.setting, each.sparsity): each.tasks[task.name] for each in results},
        )
    _print_text(results)
    print_task_legend(plan.tasks)


def _report(
    results: "Sequence[SettingResult]", tasks: "Sequence[Task]", version: str
) -> dict[str, object]:
    """The object of `eval --json`."""
    return {
        "tasks": {
            task.name: {each.setting: asdict(each.tasks[task.name]) for each in results}
            for task in tasks
        },
        "perplexity": {
            each.setting: asdict(each.text) for each in results if each.text is not None
        },
        "sparsity": {each.setting: each.sparsity for each in results},
        "lm_eval": version,
    }


def print_task(task: "Task", rows: "Mapping[str, TaskRow]") -> None:
    """Print the table of one task; `rows` has a row for each shown name, at least one."""
    first = next(iter(rows.values()))
    print_paragraph(f"{task.name}: {first.items} items of {task.path}")
    head = (*_HEAD, *(_NORMALIZED_HEAD if task.is_normalized else ()))
    print_table([head, *(_cells(name, row) for name, row in rows.items())], left=(0,), indent=2)
    _note_cut(first)
    click.echo()


def print_task_legend(tasks: "Sequence[Task]") -> None:
    """Explain the tables of tasks on stderr."""
    if tasks:
        is_normalized = any(task.is_normalized for task in tasks)
        print_paragraph(_LEGEND + (_NORMALIZED_LEGEND if is_normalized else ""), err=True)


def _cells(name: str, row: "TaskRow") -> tuple[str, ...]:
    cells = (
        name,
        percent(row.accuracy, 2),
        percent(row.standard_error, 2),
        change(row.difference),
        percent(row.difference_standard_error, 2),
        percent(row.equal_answers, 2),
    )
    if row.normalized_accuracy is None:
        return cells
    normalized = (row.normalized_accuracy, row.normalized_standard_error)
    return (*cells, *(percent(share, 2) for share in normalized))


def _note_cut(row: "TaskRow") -> None:
    if row.truncated:
        requests = f"{row.truncated} request{'s' if row.truncated != 1 else ''}"
        print_paragraph(
            f"note: {requests} did not fit into the context and lost the beginning, as in lm-eval; "
            "-c sets a larger context",
            err=True,
        )


def _print_text(results: "Sequence[SettingResult]") -> None:
    rows = [(each, each.text) for each in results if each.text is not None]
    if rows:
        print_paragraph(f"perplexity: {rows[0][1].tokens} tokens scored")
        cells = (_text_cells(each, text) for each, text in rows)
        print_table([_TEXT_HEAD, *cells], left=(0,), indent=2)


def _text_cells(result: "SettingResult", text: "TextRow") -> tuple[str, ...]:
    ratio = text.perplexity_ratio
    return (
        shown_setting(result.setting, result.sparsity),
        f"{text.perplexity:.4f}",
        f"{text.standard_error:.4f}",
        change(None if ratio is None else ratio - 1),
    )


def shown_setting(setting: str, sparsity: str) -> str:
    """Name of a setting in tables, with the sparsity that `default` stands for."""
    return f"default: {sparsity}" if setting == "default" else setting
