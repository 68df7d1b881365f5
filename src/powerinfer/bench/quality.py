"""Speed and quality of sparsity settings, one row per setting.

All rows use the same text: perplexity and agreement by `engine.perplexity`, speed by decoding the
text's own tokens one at a time, so that every setting computes the same positions.
"""

import statistics
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.bench.quality_row import DECODE_PROMPT_LENGTH, QualityPlan, QualityRow
from powerinfer.calibration.calibrate import kinds_to_measure
from powerinfer.calibration.recall import RecallMeter
from powerinfer.engine.llm import LLM
from powerinfer.engine.perplexity import Perplexity, count_windows, scored_windows
from powerinfer.errors import PromptError
from powerinfer.loading import loader
from powerinfer.loading.loader import LoadedModel
from powerinfer.loading.settings import Setting, read_setting
from powerinfer.models import Model
from powerinfer.models.metrics import NeuronTally
from powerinfer.options.options import EngineOptions

__all__ = ["DecodeTimer", "Decoded", "Measured", "Progress", "Reference", "measure_quality"]

Progress = Callable[[str, int, int], None]
"""Called with (setting, windows done, windows in all)."""

# No common tokenizer averages longer tokens than this; text beyond that is not read.
_BYTES_PER_TOKEN = 16


@dataclass(frozen=True, slots=True)
class Decoded:
    """Average cost of one decode step; `num_bytes` includes the KV cache."""

    seconds: float
    num_bytes: float
    predictor_bytes: float


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """Decode cost over several repeats.

    Attributes:
        step_s: seconds per step, one entry per repeat.
        dense_s: the same for the dense model, measured at the same times.
    """

    step_s: tuple[float, ...]
    dense_s: tuple[float, ...]
    bytes_per_token: float
    predictor_bytes: float

    @property
    def speedups(self) -> list[float]:
        """Speedups over the dense model, one per repeat."""
        return [dense / own for dense, own in zip(self.dense_s, self.step_s, strict=True)]


class DecodeTimer:
    """Decodes the same text repeatedly, with a model and with the dense one it is compared to."""

    def __init__(self, dense: LLM, token_ids: Sequence[int], plan: QualityPlan) -> None:
        self._dense, self._token_ids, self._plan = dense, token_ids, plan

    def dense(self) -> DecodeSpeed:
        """Time the dense model, whose speedup is 1.00 by definition."""
        runs = [self.decode(self._dense) for _ in range(self._plan.repeats + 1)]
        # The first run is not counted: pages and caches are cold.
        step_s = tuple(run.seconds for run in runs[1:])
        return DecodeSpeed(step_s, step_s, runs[-1].num_bytes, runs[-1].predictor_bytes)

    def beside_dense(self, llm: LLM) -> DecodeSpeed:
        """Decode in turns with the dense model; compare with its mean just before and just after.

        A clock that rises or another program that starts during the measurement affects both alike.
        Compared only with the run before it, every model (the dense one too) would look fast while
        the processor wakes up.
        """
        for each in (self._dense, llm):
            own = self.decode(each)  # not counted: pages and caches are cold
        step_s, dense_s = [], []
        before = self.decode(self._dense).seconds
        for _ in range(self._plan.repeats):
            own = self.decode(llm)
            after = self.decode(self._dense).seconds
            step_s.append(own.seconds)
            dense_s.append((before + after) / 2)
            before = after
        return DecodeSpeed(tuple(step_s), tuple(dense_s), own.num_bytes, own.predictor_bytes)

    def decode(self, llm: LLM) -> Decoded:
        """Decode the text's own tokens once, after a short prefill."""
        steps = self._plan.decode_steps
        neurons, kv_bytes = NeuronTally(llm.loaded.model), 0
        sequence = llm.new_sequence()
        sequence.extend(self._token_ids[:DECODE_PROMPT_LENGTH])
        with neurons.counting():
            started = time.perf_counter()
            for token_id in self._token_ids[DECODE_PROMPT_LENGTH : DECODE_PROMPT_LENGTH + steps]:
                kv_bytes += sequence.kv_bytes
                sequence.append(token_id)
            seconds = (time.perf_counter() - started) / steps
        num_bytes = llm.loaded.dense_bytes + (neurons.bytes_read + kv_bytes) / steps
        return Decoded(seconds, num_bytes, neurons.predictor_bytes / steps)


@dataclass(frozen=True, slots=True)
class Reference:
    """Figures of a setting, such as the dense model's, with which others are compared.

    Attributes:
        top_ids: i64[num_scored], the most likely token at each scored position.
    """

    row: QualityRow
    top_ids: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Measured(Reference):
    """One measured setting, with the model that runs it, for further measurements."""

    loaded: LoadedModel


@dataclass(frozen=True, slots=True)
class _Job:
    """Inputs shared by all rows."""

    plan: QualityPlan
    token_ids: Sequence[int]
    decoding: DecodeTimer
    progress: Progress | None


def measure_quality(
    path: Path | str | None,
    options: EngineOptions,
    plan: QualityPlan,
    text: bytes,
    progress: Progress | None = None,
    *,
    reference: Reference | None = None,
    done: Collection[str] = (),
) -> Iterator[Measured]:
    """Measure every setting, the dense model first, and yield each result at once.

    Args:
        options: engine options; `sparsity` and the dials are replaced by those of the settings.
        text: UTF-8, not the text used for calibration.
        reference: dense figures of an earlier run; the dense model is then not measured.
        done: settings measured by an earlier run, which are skipped.

    Raises:
        PromptError: the text is too short for the plan.
        PowerInferError: the model cannot be loaded, or a setting does not fit it.
    """
    options = replace(options, context_length=plan.context_length, max_ffn_error=None, recall=None)
    for name in plan.settings:
        # Reject unknown names before measuring anything.
        read_setting(name).options(options)
    opened = loader.open_model(path, options)
    dense = loader.load(opened, replace(options, sparsity="off"), None)
    token_ids = _tokens(dense, plan, text)
    settings = _settings(dense.model, plan)
    for setting in settings:
        # Before the dense model is measured, which may take long.
        setting.check(dense.model.config.activation)
    job = _Job(plan, token_ids, DecodeTimer(LLM.of(dense), token_ids, plan), progress)
    if reference is None:
        reference = _measure(job, dense, "off", None)
        yield reference
    settings = [setting for setting in settings if str(setting) not in done]
    if not settings:
        return
    if dense.model.config.activation.is_sparse:
        sparse = loader.load(opened, replace(options, sparsity="exact"), None)
    else:
        sparse = dense
    for setting in settings:
        loaded = setting.attached(sparse, options)
        if setting.sparsity is None and loaded.model.sparsity in ("off", "exact"):
            continue
        yield _measure(job, loaded, str(setting), reference)


def _settings(dense: Model, plan: QualityPlan) -> list[Setting]:
    """Settings of the rows after the dense one."""
    names = [name for name in plan.settings if name != "off"]
    if not plan.settings and dense.config.activation.is_sparse:
        names = ["exact", "default", *kinds_to_measure(dense), "oracle"]
    dialled = [name for name in names if read_setting(name).has_dial]
    if None in plan.errors:
        # Without a calibration the row without a dial would be the same; with one it would be that
        # of the calibration's own dial.
        names = [name for name in names if name not in dialled]
    return [
        *(read_setting(name) for name in names),
        *(_dialled(name, error) for name in dialled for error in plan.errors),
    ]


def _dialled(name: str, error: float | None) -> Setting:
    return replace(read_setting(name, error), is_calibrated=error is not None)


def _tokens(dense: LoadedModel, plan: QualityPlan, text: bytes) -> list[int]:
    """Tokens to score."""
    wanted = max(plan.window * plan.num_windows, plan.context_length)
    token_ids = dense.tokenizer.encode(text[: wanted * _BYTES_PER_TOKEN])[:wanted]
    if len(token_ids) < plan.context_length:
        raise PromptError(
            f"the text has {len(token_ids)} tokens; measuring quality needs {plan.context_length}",
            remedy="take a longer text, a smaller context ({context_length}) or fewer steps "
            "({decode_steps})",
        )
    return token_ids


def _measure(job: _Job, loaded: LoadedModel, name: str, dense: Reference | None) -> Measured:
    """Measure one setting; without `dense` the model itself is the reference."""
    speed = job.decoding.dense() if dense is None else job.decoding.beside_dense(LLM.of(loaded))
    meter = RecallMeter(loaded.model)
    neurons = NeuronTally(loaded.model)
    llm = LLM.of(replace(loaded, model=replace(loaded.model, observer=meter)))
    with neurons.counting():
        perplexity, top_ids = _score(job, llm, name)
    speedup = statistics.median(speed.speedups)
    if dense is None:
        rate = 1 / statistics.median(speed.step_s)
        dense_perplexity, dense_ids = perplexity.value, top_ids
    else:
        # The machine's speed may have changed since the dense row was measured; a rate from these
        # repeats alone would contradict the speedup.
        rate = dense.row.decode_tokens_per_s * speedup
        dense_perplexity, dense_ids = dense.row.perplexity, dense.top_ids
    row = QualityRow(
        setting=name,
        sparsity=loaded.model.sparsity,
        layer_kinds=loaded.model.layer_kinds,
        decode_tokens_per_s=rate,
        speedup=speedup,
        speedup_range=(min(speed.speedups), max(speed.speedups)),
        bytes_per_token=speed.bytes_per_token,
        predictor_bytes_per_token=speed.predictor_bytes if neurons.has_predictors else None,
        gb_per_s=speed.bytes_per_token * rate / 1e9,
        active_share=neurons.active_share,
        predicted_share=neurons.predicted_share,
        recall=tuple(layer.recall for layer in meter.layers),
        ffn_error=tuple(layer.ffn_error for layer in meter.layers),
        perplexity=perplexity.value,
        standard_error=perplexity.standard_error,
        perplexity_ratio=perplexity.value / dense_perplexity,
        agreement=float((top_ids == dense_ids).mean()),
        decode_s=speed.step_s,
        dense_decode_s=speed.dense_s,
    )
    return Measured(row, top_ids, loaded)


def _score(job: _Job, llm: LLM, name: str) -> tuple[Perplexity, npt.NDArray[np.int64]]:
    num_windows = count_windows(job.token_ids, job.plan.window)
    perplexity, top_ids = Perplexity(), []
    for number, score in enumerate(scored_windows(llm, job.token_ids, job.plan.window)):
        perplexity = perplexity.plus(-np.array(score.token_logprobs))
        top_ids.append(np.array(score.greedy_ids))
        if job.progress is not None:
            job.progress(name, number + 1, num_windows)
    return perplexity, np.concatenate(top_ids)
