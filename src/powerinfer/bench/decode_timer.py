"""What decoding costs with one setting of sparsity, beside the dense model at the same times."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.bench.quality_row import DECODE_PROMPT_LENGTH, QualityPlan
from powerinfer.engine.llm import LLM
from powerinfer.models.metrics import NeuronTally

__all__ = ["DecodeSpeed", "DecodeTimer", "Decoded"]


@dataclass(frozen=True, slots=True)
class Decoded:
    """What one step costs on average.

    Attributes:
        seconds: of a step.
        num_bytes: read by it, KV included.
        predictor_bytes: of those, bytes of predictors.
    """

    seconds: float
    num_bytes: float
    predictor_bytes: float


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """What several repeats cost.

    Attributes:
        step_s: seconds per step of each.
        dense_s: those of the dense model at the same times.
        bytes_per_token: as `Decoded.num_bytes`.
        predictor_bytes: as there.
    """

    step_s: tuple[float, ...]
    dense_s: tuple[float, ...]
    bytes_per_token: float
    predictor_bytes: float

    @property
    def speedups(self) -> list[float]:
        """Over the dense model, one per repeat."""
        return [dense / own for dense, own in zip(self.dense_s, self.step_s, strict=True)]


class DecodeTimer:
    """Decodes the tokens of one text again and again."""

    def __init__(self, dense: LLM, token_ids: Sequence[int], plan: QualityPlan) -> None:
        """Measure nothing yet.

        Args:
            dense: the model that others are compared with.
            token_ids: of the text.
            plan: how many steps, how often.
        """
        self._dense, self._token_ids, self._plan = dense, token_ids, plan

    def dense(self) -> DecodeSpeed:
        """The dense model: it is the measure, so it is 1.00 times as fast."""
        runs = [self.decode(self._dense) for _ in range(self._plan.repeats + 1)]
        # The first time is not counted: pages and caches are cold.
        step_s = tuple(run.seconds for run in runs[1:])
        return DecodeSpeed(step_s, step_s, runs[-1].num_bytes, runs[-1].predictor_bytes)

    def beside_dense(self, llm: LLM) -> DecodeSpeed:
        """Decode in turns with the dense model, and compare with its mean just before and after.

        A machine that grows faster or slower in the meantime, because its clock rises or another
        program runs, changes both alike. Compared with the run before alone, a processor that
        wakes up would make everything look faster than dense, the dense model too.
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
        """Decode the text's own tokens once, behind its beginning."""
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
