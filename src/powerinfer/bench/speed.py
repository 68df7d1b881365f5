"""Prefill and decode speed of a loaded model, compared with a plain read of its weights."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypedDict

import numpy as np

from powerinfer.bench.machine import Machine, describe_machine
from powerinfer.bench.quality_row import DECODE_PROMPT_LENGTH
from powerinfer.bench.read_bandwidth import PLAIN_READ_SETTINGS, PlainReader
from powerinfer.engine.llm import LLM
from powerinfer.errors import PromptError
from powerinfer.models.metrics import NeuronTally
from powerinfer.ops.cpu.prefetch_settings import PlainReadSettings
from powerinfer.sampling.sampler import Sampler
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.sampling.wanted_logits import wanted_logits
from powerinfer.values import ByteArray

__all__ = ["SpeedPlan", "SpeedResult", "measure_speed"]


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """Lengths, steps and repeats to measure.

    Attributes:
        prefill_lengths: prompt lengths, each timed from an empty cache.
        repeats: measured rounds, after one warm-up.
    """

    prefill_lengths: tuple[int, ...] = (128, 512)
    decode_steps: int = 32
    repeats: int = 3
    seed: int = 0

    @property
    def context_length(self) -> int:
        """Context length of the longest run."""
        return max(*self.prefill_lengths, DECODE_PROMPT_LENGTH + self.decode_steps, 1)


class DecodeReport(TypedDict, total=False):
    """Decode figures; absent if nothing was decoded."""

    decode_tokens_per_s: float
    bytes_per_token: float
    gb_per_s: float
    read_share: float
    active_share: float | None
    predicted_share: float | None
    python_share: float | None


class SpeedReport(DecodeReport):
    """Figures as JSON values: medians, and every sample under `samples`."""

    model: str
    architecture: str
    activation: str
    sparsity: str
    threads: int
    kernels: str
    load_s: float
    prefill_tokens_per_s: dict[str, float]
    read_gb_per_s: float
    read_way: dict[str, int]
    samples: dict[str, list[float]]
    machine: Machine


@dataclass(slots=True)
class SpeedResult:
    """Samples of every repeat.

    Attributes:
        decode_s: seconds per step, averaged over the steps of a repeat.
        native_s: the native core's part of it; empty if not counted.
        active_share: share of the FFN neurons used in decoding; None without decode.
        predicted_share: share selected by predictors; None without predictors.
    """

    prefill_s: dict[int, list[float]] = field(default_factory=dict)
    decode_s: list[float] = field(default_factory=list)
    native_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    read_way: PlainReadSettings = PLAIN_READ_SETTINGS[0]
    read_bytes: int = 0
    decode_bytes: float = 0.0
    active_share: float | None = None
    predicted_share: float | None = None

    def report(self, llm: LLM) -> SpeedReport:
        """Summarize the samples."""
        loaded = llm.loaded
        read_rate = self.read_bytes / statistics.median(self.read_s) / 1e9
        samples = {f"prefill_{n}_s": times for n, times in self.prefill_s.items()}
        decode = self._decode_report(read_rate) if self.decode_s else DecodeReport()
        return {
            "model": loaded.path.name,
            "architecture": loaded.model.config.architecture,
            "activation": str(loaded.model.config.activation),
            "sparsity": loaded.model.sparsity,
            "threads": loaded.threads,
            "kernels": loaded.kernels,
            "load_s": loaded.load_s,
            "prefill_tokens_per_s": {
                str(n): n / statistics.median(times) for n, times in self.prefill_s.items()
            },
            "read_gb_per_s": read_rate,
            "read_way": asdict(self.read_way),
            **decode,
            "samples": samples | {"decode_step_s": self.decode_s, "read_s": self.read_s},
            "machine": describe_machine(),
        }

    def _decode_report(self, read_rate: float) -> DecodeReport:
        step_s = statistics.median(self.decode_s)
        rate = self.decode_bytes / step_s / 1e9
        return {
            "decode_tokens_per_s": 1 / step_s,
            "bytes_per_token": self.decode_bytes,
            "gb_per_s": rate,
            "read_share": rate / read_rate,
            "active_share": self.active_share,
            "predicted_share": self.predicted_share,
            "python_share": self._python_share(),
        }

    def _python_share(self) -> float | None:
        """Share of a decode step spent outside the native core."""
        if not self.native_s:
            return None
        shares = [
            1 - native / whole for native, whole in zip(self.native_s, self.decode_s, strict=True)
        ]
        return statistics.median(shares)


def measure_speed(
    llm: LLM, plan: SpeedPlan, progress: Callable[[int, int], None] | None = None
) -> SpeedResult:
    """Run the plan and return its samples.

    Prefill, decode and plain read take turns within each repeat, so that drifting machine speed
    does not distort the ratios.

    Args:
        llm: loaded with a context of at least `plan.context_length`.

    Raises:
        PromptError: the context is too short for the plan, or it measures nothing.
    """
    if llm.loaded.model.context_length < plan.context_length:
        raise PromptError(
            f"the benchmark needs a context of {plan.context_length} tokens, the model was loaded "
            f"with {llm.loaded.model.context_length}"
        )
    if plan.decode_steps == 0 and not plan.prefill_lengths:
        raise PromptError("there is nothing to measure: give prompt lengths or decode steps")
    random = np.random.default_rng(plan.seed)
    reader = PlainReader(llm.loaded.threads)
    _round(llm, plan, random, reader, SpeedResult())
    result = SpeedResult()
    for number in range(plan.repeats):
        if progress is not None:
            progress(number, plan.repeats)
        _round(llm, plan, random, reader, result)
    if progress is not None:
        progress(plan.repeats, plan.repeats)
    return result


def _round(
    llm: LLM, plan: SpeedPlan, random: np.random.Generator, reader: PlainReader, result: SpeedResult
) -> None:
    for length in plan.prefill_lengths:
        result.prefill_s.setdefault(length, []).append(_prefill_s(llm, length, random))
    if plan.decode_steps:
        _decode(llm, plan.decode_steps, random, result)
    weights = _weights_read(llm)
    result.read_bytes = sum(array.nbytes for array in weights)
    result.read_s.append(reader.read_s(weights))
    result.read_way = reader.settings


def _random_tokens(llm: LLM, count: int, random: np.random.Generator) -> list[int]:
    """Draw random ids: a repeated token would always activate the same neurons."""
    ids: list[int] = random.integers(0, llm.loaded.model.config.vocab_size, count).tolist()
    return ids


def _prefill_s(llm: LLM, length: int, random: np.random.Generator) -> float:
    token_ids = _random_tokens(llm, length, random)
    sequence = llm.new_sequence()
    started = time.perf_counter()
    sequence.extend(token_ids)
    return time.perf_counter() - started


def _decode(llm: LLM, steps: int, random: np.random.Generator, result: SpeedResult) -> None:
    """Decode as `run` does, including sampling, but without end-of-generation tokens."""
    loaded = llm.loaded
    sequence = llm.new_sequence()
    params, banned = SamplingParams(seed=int(random.integers(1 << 32))), loaded.tokenizer.eog_ids
    sampler = Sampler(params, banned)
    sequence.wanted = wanted_logits(params, len(banned), loaded.model.config.vocab_size)
    logits = sequence.extend(_random_tokens(llm, DECODE_PROMPT_LENGTH, random))
    neurons = NeuronTally(loaded.model)
    native_before = loaded.model.ops.native_s
    kv_bytes = 0
    with neurons.counting():
        started = time.perf_counter()
        for _ in range(steps):
            kv_bytes += sequence.kv_bytes
            logits = sequence.append(sampler.sample(logits))
        result.decode_s.append((time.perf_counter() - started) / steps)
    if native_before is not None:
        result.native_s.append(((loaded.model.ops.native_s or 0.0) - native_before) / steps)
    result.decode_bytes = loaded.dense_bytes + (neurons.bytes_read + kv_bytes) / steps
    result.active_share = neurons.active_share
    result.predicted_share = neurons.predicted_share


def _weights_read(llm: LLM) -> Sequence[ByteArray]:
    """File bytes that a dense decode step reads: everything but an untied embedding."""
    tensors = llm.loaded.file.tensors
    has_own_output = "output.weight" in tensors
    return [
        tensor.data.reshape(-1)
        for name, tensor in tensors.items()
        if not (has_own_output and name == "token_embd.weight")
    ]
