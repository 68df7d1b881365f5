"""Decode cost of a sparsity setting, measured in turns with the dense model."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.bench.quality_row import DECODE_PROMPT_LENGTH, QualityPlan
from powerinfer.engine.llm import LLM
from powerinfer.models.metrics import NeuronTally

__all__ = ["DecodeSpeed", "DecodeTimer", "Decoded"]


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
