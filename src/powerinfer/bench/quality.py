"""Costs and gains of sparsity: one row per setting, speed and quality side by side.

All rows use the same text: perplexity and agreement by `engine.perplexity`, speed by decoding the
text's own tokens one at a time, so that every setting computes the same positions.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.bench.quality_row import DECODE_PROMPT_LENGTH, QualityPlan, QualityRow
from powerinfer.engine import loader
from powerinfer.engine.calibration.calibrate import kinds_to_measure
from powerinfer.engine.calibration.recall import RecallMeter
from powerinfer.engine.llm import LLM
from powerinfer.engine.loader import LoadedModel
from powerinfer.engine.metrics import NeuronTally
from powerinfer.engine.options import EngineOptions
from powerinfer.engine.perplexity import Perplexity, count_windows, scored_windows
from powerinfer.engine.settings import Setting, read_setting
from powerinfer.errors import PromptError
from powerinfer.models import Model

__all__ = ["Progress", "measure_quality"]

Progress = Callable[[str, int, int], None]
"""Called with (setting, windows done, windows in all)."""

# No usual tokenizer makes tokens longer than this on average; the rest of a text is not read.
_BYTES_PER_TOKEN = 16
_WITHOUT_DIAL = ("off", "exact", "default", "oracle")


@dataclass(frozen=True, slots=True)
class _Scores:
    """What one setting predicts for the text."""

    perplexity: Perplexity
    top_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Speed:
    """What its decoding costs; `dense_s` are the dense model's steps at the same times."""

    step_s: tuple[float, ...]
    dense_s: tuple[float, ...]
    bytes_per_token: float

    @property
    def speedups(self) -> list[float]:
        """Over the dense model, one per repeat."""
        return [dense / own for dense, own in zip(self.dense_s, self.step_s, strict=True)]


@dataclass(frozen=True, slots=True)
class _Job:
    """What is the same for all rows."""

    plan: QualityPlan
    token_ids: Sequence[int]
    dense: LLM
    progress: Progress | None


def measure_quality(
    path: Path | str | None,
    options: EngineOptions,
    plan: QualityPlan,
    text: bytes,
    progress: Progress | None = None,
) -> Iterator[QualityRow]:
    """Measure every setting, yielding rows as they are done; the dense model comes first.

    Args:
        path: of the model, see `engine.loader.load`.
        options: of the engine; `sparsity` and the dials are those of the settings.
        plan: what to measure.
        text: UTF-8; not the one that was calibrated on.
        progress: told after every window.

    Raises:
        PromptError: the text is too short for the plan.
        PowerInferError: a setting does not fit the model.
    """
    options = replace(options, context_length=plan.context_length, max_ffn_error=None, recall=None)
    for name in plan.settings:
        # Refuses unknown names before anything is measured.
        read_setting(name).options(options)
    dense = loader.load(path, replace(options, sparsity="off"), None)
    token_ids = _tokens(dense, plan, text)
    settings = _settings(dense.model, plan)
    job = _Job(plan, token_ids, LLM.of(dense), progress)
    dense_scores, dense_row = _measure(job, dense, "off", None)
    yield dense_row
    if not settings:
        return
    sparse = loader.load(path, replace(options, sparsity="exact"), None)
    for setting in settings:
        loaded = setting.attached(sparse, options)
        if setting.sparsity is None and loaded.model.sparsity in ("off", "exact"):
            continue
        yield _measure(job, loaded, str(setting), (dense_scores, dense_row))[1]


def _settings(dense: Model, plan: QualityPlan) -> list[Setting]:
    """The settings of the rows after the dense one."""
    names = [name for name in plan.settings if name != "off"]
    if not plan.settings and dense.config.activation.is_sparse:
        names = ["exact", "default", *kinds_to_measure(dense), "oracle"]
    dialled = [name for name in names if name not in _WITHOUT_DIAL]
    return [
        *(read_setting(name) for name in names),
        *(read_setting(name, error) for name in dialled for error in plan.errors),
    ]


def _tokens(dense: LoadedModel, plan: QualityPlan, text: bytes) -> list[int]:
    """The tokens that are scored.

    Raises:
        PromptError: they are too few.
    """
    wanted = max(plan.window * plan.num_windows, plan.context_length)
    token_ids = dense.tokenizer.encode(text[: wanted * _BYTES_PER_TOKEN])[:wanted]
    if len(token_ids) < plan.context_length:
        raise PromptError(
            f"the text has {len(token_ids)} tokens; measuring quality needs {plan.context_length}",
            remedy="take a longer text, a smaller context ({context_length}) or fewer steps "
            "({decode_steps})",
        )
    return token_ids


def _measure(
    job: _Job, loaded: LoadedModel, name: str, dense: tuple[_Scores, QualityRow] | None
) -> tuple[_Scores, QualityRow]:
    """One row; without `dense` the model itself is what others are compared with."""
    speed = _dense_speed(job) if dense is None else _speed(job, LLM.of(loaded))
    meter = RecallMeter(loaded.model)
    neurons = NeuronTally(loaded.model)
    llm = LLM.of(replace(loaded, model=replace(loaded.model, observer=meter)))
    with neurons.counting():
        scores = _score(job, llm, name)
    speedup = statistics.median(speed.speedups)
    if dense is None:
        dense_scores, rate = scores, 1 / statistics.median(speed.step_s)
    else:
        # The machine may have become faster or slower since the dense row was measured; a rate
        # from these repeats alone would contradict the speedup.
        dense_scores, rate = dense[0], dense[1].decode_tokens_per_s * speedup
    return scores, QualityRow(
        setting=name,
        sparsity=loaded.model.sparsity,
        layer_kinds=loaded.model.layer_kinds,
        decode_tokens_per_s=rate,
        speedup=speedup,
        speedup_range=(min(speed.speedups), max(speed.speedups)),
        bytes_per_token=speed.bytes_per_token,
        gb_per_s=speed.bytes_per_token * rate / 1e9,
        active_share=neurons.active_share,
        predicted_share=neurons.predicted_share,
        recall=tuple(layer.recall for layer in meter.layers),
        ffn_error=tuple(layer.ffn_error for layer in meter.layers),
        perplexity=scores.perplexity.value,
        standard_error=scores.perplexity.standard_error,
        perplexity_ratio=scores.perplexity.value / dense_scores.perplexity.value,
        agreement=float((scores.top_ids == dense_scores.top_ids).mean()),
        decode_s=speed.step_s,
        dense_decode_s=speed.dense_s,
    )


def _score(job: _Job, llm: LLM, name: str) -> _Scores:
    """Perplexity and likeliest tokens."""
    num_windows = count_windows(job.token_ids, job.plan.window)
    perplexity, top_ids = Perplexity(), []
    for number, score in enumerate(scored_windows(llm, job.token_ids, job.plan.window)):
        perplexity = perplexity.plus(score.nll)
        top_ids.append(score.top_ids)
        if job.progress is not None:
            job.progress(name, number + 1, num_windows)
    return _Scores(perplexity, np.concatenate(top_ids))


def _dense_speed(job: _Job) -> _Speed:
    """What the dense model's decoding costs: it is the measure, so it is 1.00 times as fast."""
    runs = [_decode(job, job.dense) for _ in range(job.plan.repeats + 1)]
    # The first time is not counted: pages and caches are cold.
    step_s = tuple(seconds for seconds, _ in runs[1:])
    return _Speed(step_s, step_s, runs[-1][1])


def _speed(job: _Job, llm: LLM) -> _Speed:
    """Decode in turns with the dense model, and compare with its mean just before and just after.

    A machine that grows faster or slower in the meantime, because its clock rises or another
    program runs, changes both alike. Compared with the run before alone, a processor that wakes up
    would make everything look faster than dense, the dense model too.
    """
    for each in (job.dense, llm):
        _decode(job, each)  # not counted: pages and caches are cold
    step_s, dense_s, num_bytes = [], [], 0.0
    before, _ = _decode(job, job.dense)
    for _ in range(job.plan.repeats):
        seconds, num_bytes = _decode(job, llm)
        after, _ = _decode(job, job.dense)
        step_s.append(seconds)
        dense_s.append((before + after) / 2)
        before = after
    return _Speed(tuple(step_s), tuple(dense_s), num_bytes)


def _decode(job: _Job, llm: LLM) -> tuple[float, float]:
    """Decode the text's own tokens: seconds and bytes per step."""
    steps = job.plan.decode_steps
    neurons, kv_bytes = NeuronTally(llm.loaded.model), 0
    sequence = llm.new_sequence()
    sequence.extend(job.token_ids[:DECODE_PROMPT_LENGTH])
    with neurons.counting():
        started = time.perf_counter()
        for token_id in job.token_ids[DECODE_PROMPT_LENGTH : DECODE_PROMPT_LENGTH + steps]:
            kv_bytes += sequence.kv_bytes
            sequence.append(token_id)
        seconds = (time.perf_counter() - started) / steps
    return seconds, llm.loaded.dense_bytes + (neurons.bytes_read + kv_bytes) / steps
