"""What a generation cost: seconds, tokens, bytes really read, neurons really computed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from powerinfer.ops.protocol import FFNCounters

__all__ = ["CostMeter", "Metrics"]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of one generation.

    Attributes:
        load_s: seconds the model took to load.
        prefill_tokens: prompt tokens computed (those reused from the KV cache are not counted).
        prefill_s: seconds from the prompt to the logits of its last token.
        decode_tokens: tokens generated, the one that ended the generation not counted.
        decode_steps: steps of one token that were run for them (the first token needs none).
        decode_s: seconds of those steps, choosing the tokens included.
        decode_bytes: weight and KV bytes read by those steps.
        active_neurons: FFN neurons used in those steps, summed over layers; all with sparsity off.
        total_neurons: FFN neurons there are, summed likewise.
    """

    load_s: float
    prefill_tokens: int
    prefill_s: float
    decode_tokens: int
    decode_steps: int
    decode_s: float
    decode_bytes: int
    active_neurons: int
    total_neurons: int

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """None where nothing was computed."""
        return _ratio(self.prefill_tokens, self.prefill_s)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """None where no step was run."""
        return _ratio(self.decode_steps, self.decode_s)

    @property
    def bytes_per_token(self) -> float | None:
        """Weight rows really read plus keys and values, per decode step."""
        return _ratio(self.decode_bytes, self.decode_steps)

    @property
    def gb_per_s(self) -> float | None:
        """Bytes read per second of decoding, in 10^9."""
        per_second = _ratio(self.decode_bytes, self.decode_s)
        return None if per_second is None else per_second / 1e9

    @property
    def active_share(self) -> float | None:
        """Share of the FFN neurons whose result was used in decoding; 1 with sparsity off."""
        return _ratio(self.active_neurons, self.total_neurons)


class CostMeter:
    """Adds up what the steps of one generation cost.

    Attributes:
        prefill_tokens: see `Metrics`.
        prefill_s: see `Metrics`.
        decode_s: see `Metrics`.
    """

    def __init__(
        self, load_s: float, dense_bytes: int, counters: FFNCounters, *, uses_all: bool
    ) -> None:
        """Start at zero.

        Args:
            load_s: seconds the model took to load.
            dense_bytes: bytes every decode step reads.
            counters: of the backend; what they grow by in a step belongs to the step.
            uses_all: no neuron is skipped; the counters tell how many were not zero.
        """
        self._uses_all = uses_all
        self._load_s = load_s
        self._dense_bytes = dense_bytes
        self._counters = counters
        self.prefill_tokens = 0
        self.prefill_s = 0.0
        self.decode_s = 0.0
        self._decode_steps = 0
        self._decode_bytes = 0
        self._active = 0
        self._total = 0

    @contextmanager
    def decode_step(self, kv_bytes: int) -> Iterator[None]:
        """Count what runs inside as one decode step that reads `kv_bytes` of keys and values."""
        before = (self._counters.active, self._counters.total, self._counters.bytes_read)
        started = time.perf_counter()
        yield
        self.decode_s += time.perf_counter() - started
        self._decode_steps += 1
        total = self._counters.total - before[1]
        self._active += total if self._uses_all else self._counters.active - before[0]
        self._total += total
        ffn_bytes = self._counters.bytes_read - before[2]
        self._decode_bytes += self._dense_bytes + ffn_bytes + kv_bytes

    def metrics(self, decode_tokens: int) -> Metrics:
        """The figures so far."""
        return Metrics(
            load_s=self._load_s,
            prefill_tokens=self.prefill_tokens,
            prefill_s=self.prefill_s,
            decode_tokens=decode_tokens,
            decode_steps=self._decode_steps,
            decode_s=self.decode_s,
            decode_bytes=self._decode_bytes,
            active_neurons=self._active,
            total_neurons=self._total,
        )


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if numerator > 0 and denominator > 0 else None
