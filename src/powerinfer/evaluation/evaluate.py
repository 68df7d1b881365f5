"""Accuracy on tasks and perplexity of a text, for several sparsity settings of one model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from powerinfer.engine.llm import LLM
from powerinfer.engine.perplexity import Perplexity, count_windows, perplexity_windows
from powerinfer.evaluation.answers import Answers, TaskRow, compare
from powerinfer.evaluation.harness import Progress, ask_all
from powerinfer.evaluation.local_task import LocalTask
from powerinfer.evaluation.task import Task
from powerinfer.loading import loader
from powerinfer.loading.settings import read_setting
from powerinfer.models.sparsity import EXACT, OFF
from powerinfer.options.options import EngineOptions

__all__ = ["EvalPlan", "SettingResult", "TextRow", "evaluate_settings"]

_WINDOW = 512


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """Plan of an evaluation.

    Attributes:
        settings: values of `--sparsity`, or `default`; the dense model, `off`, always comes first.
    """

    tasks: tuple[Task, ...]
    settings: tuple[str, ...]
    text: bytes | None = None


@dataclass(frozen=True, slots=True)
class TextRow:
    """Perplexity of one setting, as `powerinfer perplexity` measures it.

    Attributes:
        perplexity_ratio: ratio to the dense model's; None for the dense model itself.
    """

    perplexity: float
    standard_error: float
    tokens: int
    perplexity_ratio: float | None


@dataclass(frozen=True, slots=True)
class SettingResult:
    """All results of one setting."""

    setting: str
    sparsity: str
    tasks: dict[str, TaskRow]
    text: TextRow | None


@dataclass(frozen=True, slots=True)
class _Measured:
    """Measurements of one setting."""

    answers: dict[str, Answers]
    perplexity: Perplexity | None


def evaluate_settings(
    path: Path | str | None,
    options: EngineOptions,
    plan: EvalPlan,
    progress: Progress | None = None,
) -> Iterator[SettingResult]:
    """Measure every setting and yield its results; the dense model comes first.

    Args:
        options: engine options; settings replace `sparsity` and the dials.

    Raises:
        PromptError: an item cannot be scored, or the text is shorter than a window.
        PowerInferError: the model cannot be loaded, or a setting does not fit it.
    """
    options = replace(options, max_ffn_error=None, recall=None)
    settings = [read_setting(name) for name in dict.fromkeys(plan.settings) if name != OFF]
    for setting in settings:
        # Raises for unknown names before anything is measured.
        setting.options(options)
    job = _Job(plan, progress)
    off = replace(options, sparsity=OFF, activation_threshold=None)
    dense_model = _load(path, off, progress)
    activation = dense_model.model.config.activation
    for setting in settings:
        # Before the dense model is measured, which may take hours.
        setting.check(activation)
    dense = job.measure(dense_model, OFF)
    yield _result(OFF, OFF, dense, None)
    # Its weights may be in other layouts, and two models may not fit the memory.
    del dense_model
    sparse = None
    for setting in settings:
        wanted = setting.options(options)
        if not activation.is_sparse and wanted.activation_threshold is None:
            yield _result(str(setting), OFF, dense, dense)
            continue
        sparse = sparse or _load(
            path, replace(off, sparsity=EXACT if activation.is_sparse else OFF), progress
        )
        loaded = setting.attached(sparse, options)
        yield _result(str(setting), loaded.model.sparsity, job.measure(loaded, str(setting)), dense)


def _load(
    path: Path | str | None, options: EngineOptions, progress: Progress | None
) -> loader.LoadedModel:
    told = None if progress is None else partial(progress, "loading")
    return loader.load(loader.open_model(path, options), options, told)


class _Job:
    """Measures one setting after the other."""

    def __init__(self, plan: EvalPlan, progress: Progress | None) -> None:
        self._tasks = [LocalTask(task) for task in plan.tasks]
        self._text = plan.text
        self._progress = progress
        self._token_ids: list[int] | None = None

    def measure(self, loaded: loader.LoadedModel, name: str) -> _Measured:
        """Measure all tasks and the text with one setting."""
        window = min(_WINDOW, loaded.model.context_length)
        with LLM.of(loaded) as llm:
            token_ids = self._tokens(llm, window)
            answers = ask_all(llm, self._tasks, name, self._progress)
            return _Measured(answers, self._perplexity(llm, token_ids, window, name))

    def _tokens(self, llm: LLM, window: int) -> Sequence[int]:
        """Encode the text and check that it has a window, before anything is measured."""
        if self._text is None:
            return ()
        if self._token_ids is None:
            self._token_ids = llm.loaded.tokenizer.encode(self._text)
            count_windows(self._token_ids, window)
        return self._token_ids

    def _perplexity(
        self, llm: LLM, token_ids: Sequence[int], window: int, name: str
    ) -> Perplexity | None:
        if not token_ids:
            return None
        estimate, total = Perplexity(), count_windows(token_ids, window)
        for estimate in perplexity_windows(llm, token_ids, window):
            if self._progress is not None:
                self._progress(f"perplexity, {name}", estimate.num_windows, total)
        return estimate


def _result(
    setting: str, sparsity: str, measured: _Measured, dense: _Measured | None
) -> SettingResult:
    rows = {
        name: compare(answers, None if dense is None else dense.answers[name])
        for name, answers in measured.answers.items()
    }
    return SettingResult(setting, sparsity, rows, _text_row(measured, dense))


def _text_row(measured: _Measured, dense: _Measured | None) -> TextRow | None:
    found = measured.perplexity
    if found is None:
        return None
    base = None if dense is None else dense.perplexity
    return TextRow(
        found.value,
        found.standard_error,
        found.num_scored,
        None if base is None else found.value / base.value,
    )
