"""`powerinfer bench --quality`: measures one setting after another, saves and prints them."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import model_file
from powerinfer.cli.flags.options import print_json
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.cli.report.quality_results import (
    QualityResults,
    SettingFigures,
    fingerprint,
    load_results,
    save_results,
)
from powerinfer.cli.report.quality_table import print_quality
from powerinfer.cli.report.tables import print_paragraph
from powerinfer.errors import MeasurementError
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.options import CPU, EngineOptions, engine_options

if TYPE_CHECKING:
    from powerinfer.bench.quality import Progress
    from powerinfer.bench.quality_row import QualityPlan
    from powerinfer.evaluation.answers import Answers
    from powerinfer.evaluation.task import Task
    from powerinfer.gguf import GGUFFile
    from powerinfer.loading.loader import LoadedModel

__all__ = ["QualityJob", "run_quality"]

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
        plan: settings, sizes and repeats.
        tasks: tasks for each setting.
        text: UTF-8; None takes the bundled text.
        output: file that keeps the results; None for none.
    """

    plan: "QualityPlan"
    tasks: "tuple[Task, ...]"
    text: bytes | None
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
        click.UsageError: a flag names one setting, where --settings and --errors name many.
        PowerInferError: the model cannot be loaded, a setting or an item does not fit it, or the
            file of an earlier run belongs to other measurements.
    """
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
    for name in ("sparsity", "max_ffn_error", "recall", "measure_recall"):
        if given.get(name):
            raise click.UsageError(
                f"--quality measures --settings at --errors; leave --{name.replace('_', '-')} out"
            )
    options = engine_options(**given)
    if options.wants_gpu:
        raise click.UsageError("--quality measures on the CPU: leave --device and GPU options out")
    return options


def _text(job: QualityJob) -> bytes:
    if job.text is not None:
        return job.text
    from powerinfer.calibration.text import bundled_text

    print_paragraph(_BUNDLED, err=True)
    return bundled_text().encode()


def _begin(
    path: Path, job: QualityJob, text: bytes, options: EngineOptions, version: str | None
) -> QualityResults:
    """Results of an earlier run from the file of `-o`, or empty ones.

    Raises:
        MeasurementError: the file cannot be used, or belongs to other measurements.
    """
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
