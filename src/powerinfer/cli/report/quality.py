"""`powerinfer bench --quality`: measures one setting after another, saves and prints them."""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import check_folder, model_file, read_text
from powerinfer.cli.flags.options import print_json
from powerinfer.cli.report.evaluation import print_task, print_task_legend, shown_setting
from powerinfer.cli.report.progress import BEGINS_AGAIN, ProgressBar
from powerinfer.cli.report.quality_results import (
    QualityResults,
    SettingFigures,
    fingerprint,
    load_results,
    save_results,
)
from powerinfer.cli.report.tables import change, percent, print_paragraph, print_table
from powerinfer.cli.signals import TerminatedError
from powerinfer.errors import MeasurementError
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.options import CPU, EngineOptions, engine_options
from powerinfer.store.memory import format_bytes

if TYPE_CHECKING:
    from powerinfer.bench.quality import Progress
    from powerinfer.bench.quality_row import QualityPlan, QualityRow
    from powerinfer.evaluation.answers import Answers
    from powerinfer.evaluation.task import Task
    from powerinfer.gguf import GGUFFile
    from powerinfer.loading.loader import LoadedModel

__all__ = ["QualityJob", "run_quality"]

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

_BUNDLED = (
    "text: the bundled one, which `powerinfer calibrate` may have seen: give another with -f FILE "
    "to judge a calibration"
)
# Varied by the settings, or part of the plan.
_OTHER_OPTIONS = ("sparsity", "max_ffn_error", "recall", "context_length", "device")


@dataclass(frozen=True, slots=True)
class QualityJob:
    """Measurements of a model.

    Attributes:
        file: with the text, in UTF-8; None takes the bundled one.
        output: file that keeps the results; None for none.
    """

    plan: "QualityPlan"
    tasks: "tuple[Task, ...]"
    file: Path | None
    output: Path | None


def run_quality(
    model: Path | None,
    job: QualityJob,
    given: LLMOptions,
    *,
    as_json: bool,
) -> None:
    """Measure and print; an early end prints the results so far.

    Raises:
        click.UsageError: nothing is to be decoded, or a flag names one setting, where --settings
            and --errors name many.
        PowerInferError: the model cannot be loaded, a setting or an item does not fit it, or the
            file of an earlier run belongs to other measurements.
    """
    if job.plan.decode_steps == 0:
        raise click.UsageError("--quality decodes: give --decode 1 or more, got 0")
    if job.output is not None:
        check_folder(job.output.parent)
    options = replace(_checked(given), device=CPU)
    from powerinfer.bench.machine import describe_machine

    version = None
    if job.tasks:
        from powerinfer.evaluation.installed import prepare_lm_eval

        version = prepare_lm_eval("--tasks")
    path, text = model_file(model), _text(job)
    results = _begin(path, job, text, options, version)
    is_complete = False
    try:
        _measure(path, job, text, options, results)
        is_complete = True
    except (KeyboardInterrupt, TerminatedError):
        if not results.settings:
            click.echo(BEGINS_AGAIN, err=True)
        raise
    finally:
        if results.settings and as_json:
            facts = {"machine": describe_machine(), "lm_eval": version, "is_complete": is_complete}
            print_json({"rows": results.rows_as_json(), **facts})
        elif results.settings:
            print_quality(results, job.tasks)
        if results.settings and not is_complete:
            _say_what_is_kept(results, job)


def _say_what_is_kept(results: QualityResults, job: QualityJob) -> None:
    """Tell after an early end whether results were kept."""
    count = len(results.settings)
    rows = "1 setting was" if count == 1 else f"{count} settings were"
    kept = (
        "; -o FILE would have kept them for the next run"
        if job.output is None
        else f" and kept in {job.output}: the same command resumes"
    )
    print_paragraph(f"note: {rows} measured{kept}", err=True)


def _checked(given: LLMOptions) -> EngineOptions:
    """Engine options, none of which may be varied by the settings."""
    for name in ("sparsity", "activation_threshold", "max_ffn_error", "recall", "measure_recall"):
        # A threshold of 0 is given, too.
        if given.get(name) is not None and given.get(name) is not False:
            raise click.UsageError(
                f"--quality measures --settings at --errors; leave --{name.replace('_', '-')} out"
            )
    options = engine_options(**given)
    if options.wants_gpu:
        raise click.UsageError("--quality measures on the CPU: leave --device and GPU options out")
    return options


def _text(job: QualityJob) -> bytes:
    if job.file is not None:
        return read_text(job.file)
    from powerinfer.calibration.text import bundled_text

    print_paragraph(_BUNDLED, err=True)
    return bundled_text().encode()


def _begin(
    path: Path, job: QualityJob, text: bytes, options: EngineOptions, version: str | None
) -> QualityResults:
    """Results of an earlier run from the file of `-o`, or empty ones."""
    from powerinfer.gguf import open_gguf

    new = QualityResults(_subject(open_gguf(path), job, text, options, version))
    if job.output is None or not job.output.exists():
        return new
    earlier = load_results(job.output)
    different = [name for name, value in new.subject.items() if earlier.subject.get(name) != value]
    if different:
        raise MeasurementError(
            f"{job.output}: was measured with another {different[0]}",
            remedy="remove it, or name another file with {output}",
        )
    return earlier


def _subject(
    file: "GGUFFile", job: QualityJob, text: bytes, options: EngineOptions, version: str | None
) -> dict[str, str]:
    """Facts that runs with the same file must share, by their names in errors."""
    from powerinfer.bench.machine import describe_machine
    from powerinfer.calibration.files import find_calibration
    from powerinfer.gguf import model_identity
    from powerinfer.predictors.calibration_json import CALIBRATION

    found = find_calibration(file)
    plan = job.plan
    calibration = "" if found is None else _digest(CALIBRATION.to_json(found).encode())
    default = EngineOptions()
    given = [
        f"{field.name}={getattr(options, field.name)}"
        for field in fields(options)
        if field.name not in _OTHER_OPTIONS
        and getattr(options, field.name) != getattr(default, field.name)
    ]
    tasks = [f"{task.name}: {len(task.items)} items, {fingerprint(task)}" for task in job.tasks]
    return {
        "model": model_identity(file),
        "text": _digest(text),
        "plan": f"windows of {plan.window}, at most {plan.num_windows}; {plan.decode_steps} steps, "
        f"{plan.repeats} repeats",
        "list of tasks": "; ".join([*tasks, *([] if version is None else [f"lm-eval {version}"])]),
        "calibration": calibration,
        "set of options": ", ".join(given),
        "processor": describe_machine()["cpu"],
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _measure(
    path: Path, job: QualityJob, text: bytes, options: EngineOptions, results: QualityResults
) -> None:
    """Measure the missing settings with a progress bar, and save each of them."""
    from powerinfer.bench.quality import Reference, measure_quality

    reference = None
    if results.settings:
        reference = Reference(results.settings[0].row, results.top_ids)
    ask = _asker(job.tasks)
    with ProgressBar("loading") as bar:

        def show(what: str, done: int, total: int) -> None:
            bar(done, total, what)

        for each in measure_quality(
            path, options, job.plan, text, show, reference=reference, done=results.names
        ):
            answers = ask(each.loaded, each.row.setting, show)
            if not results.settings:
                results.top_ids = each.top_ids
            results.settings.append(SettingFigures(each.row, answers))
            if job.output is not None:
                save_results(job.output, results)


def _asker(
    tasks: "Sequence[Task]",
) -> "Callable[[LoadedModel, str, Progress], dict[str, Answers]]":
    """Create a function that asks a loaded model all tasks."""
    if not tasks:
        return lambda _loaded, _setting, _progress: {}
    from powerinfer.engine.llm import LLM
    from powerinfer.evaluation.harness import ask_all
    from powerinfer.evaluation.local_task import LocalTask

    local = [LocalTask(task) for task in tasks]

    def ask(loaded: "LoadedModel", setting: str, progress: "Progress") -> "dict[str, Answers]":
        with LLM.of(loaded) as llm:
            return ask_all(llm, local, setting, progress)

    return ask


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
        change(row.perplexity_ratio - 1),
        percent(row.agreement, 2),
    )
