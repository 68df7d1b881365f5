"""Cost of a generation: seconds, tokens, bytes read, neurons computed."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from operator import add, attrgetter, sub
from typing import NamedTuple

from powerinfer.kvcache import KVCache
from powerinfer.models import Model, ModelConfig
from powerinfer.models.model import layer_kv_bytes
from powerinfer.ops.protocol import FFNCounters

__all__ = [
    "CostMeter",
    "Metrics",
    "NeuronTally",
    "StepCost",
    "StepMeter",
    "TokenCounts",
    "has_predictors",
    "uncounted",
]

# One call, as every step copies them.
_COUNTED: Callable[[FFNCounters], tuple[int, ...]] = attrgetter(
    "active", "predicted", "total", "bytes_read", "predictor_bytes"
)


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of one generation.

    Attributes:
        load_s: seconds the model took to load.
        prefill_tokens: prompt tokens computed, without those reused from the KV cache.
        prefill_s: seconds from the prompt to the logits of its last token.
        decode_tokens: tokens generated, without the one that ended the generation.
        decode_steps: steps run for them (the first token needs none).
        decode_s: seconds of those steps, sampling included.
        decode_bytes: weight and KV bytes read by those steps.
        active_neurons: FFN neurons used in those steps, summed over layers; all with sparsity off.
        predicted_neurons: FFN neurons selected by predictors, summed likewise, all those of layers
            without a predictor included; None without predictors.
        total_neurons: all FFN neurons, summed likewise.
        predicted_tokens_per_s: decode speed predicted by the cost model of a GPU placement; None
            without one.
        has_experts: only neurons of each token's experts are counted.
        num_drafted: drafted tokens that those steps computed.
        num_accepted: number of these whose logits gave a further token.
    """

    load_s: float
    prefill_tokens: int
    prefill_s: float
    decode_tokens: int
    decode_steps: int
    decode_s: float
    decode_bytes: int
    active_neurons: int
    predicted_neurons: int | None
    total_neurons: int
    predicted_tokens_per_s: float | None = None
    has_experts: bool = False
    num_drafted: int = 0
    num_accepted: int = 0

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """Prefill speed; None if nothing was computed."""
        return _ratio(self.prefill_tokens, self.prefill_s)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Decode speed; None if no step was run."""
        return _ratio(self._num_rows, self.decode_s)

    @property
    def bytes_per_token(self) -> float | None:
        """Weight and KV bytes actually read per token of the decode steps."""
        return _ratio(self.decode_bytes, self._num_rows)

    @property
    def tokens_per_step(self) -> float | None:
        """Tokens that a decode step gave; 1 without drafts, None if no step was run."""
        return _ratio(self._num_rows, self.decode_steps)

    @property
    def draft_accepted_share(self) -> float | None:
        """Share of the drafted tokens that were right; None if nothing was drafted."""
        return _share(self.num_accepted, self.num_drafted)

    @property
    def _num_rows(self) -> int:
        """Rows of the decode steps that gave a token."""
        return self.decode_steps + self.num_accepted

    @property
    def gb_per_s(self) -> float | None:
        """Bytes read per second of decoding, in 10^9."""
        per_second = _ratio(self.decode_bytes, self.decode_s)
        return None if per_second is None else per_second / 1e9

    @property
    def active_share(self) -> float | None:
        """Share of the FFN neurons whose result was used in decoding; 1 with sparsity off."""
        return _share(self.active_neurons, self.total_neurons)

    @property
    def predicted_share(self) -> float | None:
        """Share of the FFN neurons selected by predictors; None without predictors."""
        predicted = self.predicted_neurons
        return None if predicted is None else _share(predicted, self.total_neurons)


class NeuronTally:
    """Counts neurons and bytes of a model's FFNs while `counting`.

    Attributes:
        active: neurons used, summed over tokens and layers; all of them with sparsity off.
        total: all neurons, summed likewise.
        bytes_read: weight bytes read by FFN calls, predictors included.
        has_experts: only neurons of each token's experts are counted.
    """

    def __init__(self, model: Model) -> None:
        self._counters = model.ops.counters
        self._uses_all = model.sparsity == "off"
        self.has_predictors = has_predictors(model)
        self._config = model.config
        self.has_experts = model.config.experts is not None
        self.reset()

    def reset(self) -> None:
        """Reset the counts."""
        self._predicted = 0
        self.active = 0
        self.total = 0
        self.bytes_read = 0
        self.predictor_bytes = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the steps run in this context."""
        before = _COUNTED(self._counters)
        yield
        active, predicted, total, bytes_read, of_predictors = map(
            sub, _COUNTED(self._counters), before
        )
        total = _candidates(self._config, total)
        # The backend's counters tell which neurons were not zero, even if none was skipped.
        self.active += total if self._uses_all else active
        self.total += total
        self.bytes_read += bytes_read
        self.predictor_bytes += of_predictors
        self._predicted += predicted

    @property
    def predicted(self) -> int | None:
        """Neurons selected by predictors, all of layers without one included; None without any."""
        return self._predicted if self.has_predictors else None

    @property
    def active_share(self) -> float | None:
        """See `Metrics`."""
        return _share(self.active, self.total)

    @property
    def predicted_share(self) -> float | None:
        """See `Metrics`."""
        return None if self.predicted is None else _share(self.predicted, self.total)


class StepCost(NamedTuple):
    """Cost of decode steps; see `Metrics`."""

    bytes_read: int = 0
    active: int = 0
    predicted: int = 0
    total: int = 0


class TokenCounts(NamedTuple):
    """Tokens generated, drafted and accepted, and decode steps, a step counted for each text."""

    generated: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0

    @classmethod
    def total(cls, counts: Iterable["TokenCounts"]) -> "TokenCounts":
        """Add up the counts of several texts."""
        return cls(*map(sum, zip(*counts, strict=True)))


@dataclass(slots=True, eq=False)
class CostMeter:
    """Adds up the cost of one sequence; keeps neither weights nor KV cache alive."""

    load_s: float
    predicted_tokens_per_s: float | None = None
    has_predictors: bool = False
    has_experts: bool = False
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_drafted: int = 0
    num_accepted: int = 0
    decode_steps: int = 0
    _decode: StepCost = field(default_factory=StepCost)

    def add_decode_step(self, cost: StepCost) -> None:
        """Count a step that computed the next token of this sequence."""
        self._decode = StepCost(*map(add, self._decode, cost))
        self.decode_steps += 1

    def token_counts(self, num_generated: int) -> TokenCounts:
        """Return the counts of a text with so many tokens."""
        return TokenCounts(num_generated, self.num_drafted, self.num_accepted, self.decode_steps)

    def metrics(self, decode_tokens: int) -> Metrics:
        """Return the figures so far."""
        return Metrics(
            load_s=self.load_s,
            prefill_tokens=self.prefill_tokens,
            prefill_s=self.prefill_s,
            decode_tokens=decode_tokens,
            decode_steps=self.decode_steps,
            decode_s=self.decode_s,
            decode_bytes=self._decode.bytes_read,
            active_neurons=self._decode.active,
            predicted_neurons=self._decode.predicted if self.has_predictors else None,
            total_neurons=self._decode.total,
            predicted_tokens_per_s=self.predicted_tokens_per_s,
            has_experts=self.has_experts,
            num_drafted=self.num_drafted,
            num_accepted=self.num_accepted,
        )


class StepMeter(NeuronTally):
    """Divides the cost of steps among their sequences."""

    def __init__(self, model: Model, dense_bytes: int, cache: KVCache) -> None:
        """Count the work of a model; every decode step reads `dense_bytes` once."""
        super().__init__(model)
        self._dense_bytes = dense_bytes
        self._state_bytes = model.config.state_bytes
        # Bytes of all layers with each window: adding up layers at every token takes too long.
        self._windows = Counter[int | None]()
        for layer in model.config.attention_layers:
            self._windows[layer.window] += layer_kv_bytes(layer, cache.kv_type)

    def shares(self, lengths: Sequence[int]) -> list[StepCost]:
        """Return the cost of the counted step for sequences of these lengths, and reset."""
        whole = (self.bytes_read + self._dense_bytes, self.active, self.predicted or 0, self.total)
        parts = [divmod(amount, len(lengths)) for amount in whole]
        self.reset()
        costs = []
        for number, length in enumerate(lengths):
            # Integers that differ by at most 1.
            weight_bytes, *others = [part + (number < rest) for part, rest in parts]
            costs.append(StepCost(weight_bytes + self._kv_bytes(length), *others))
        return costs

    def _kv_bytes(self, length: int) -> int:
        """Bytes of keys, values and states that a token reads, see `sequence_bytes`."""
        attended = (min(length, window or length) * n for window, n in self._windows.items())
        return sum(attended) + self._state_bytes


def _candidates(config: ModelConfig, total: int) -> int:
    """Convert a count over all experts' neurons to one over the chosen experts'."""
    experts = config.experts
    if experts is None:
        return total
    own = config.intermediate_size, experts.num_used
    num_dense = experts.num_dense_layers * experts.dense_size
    num_candidates = num_all = num_dense
    for number in range(experts.num_dense_layers, config.num_layers):
        if number not in config.absent.ffns:
            size, num_used = (config.layer_sizes or {number: own})[number]
            num_candidates += size * num_used + experts.shared_size
            num_all += size * experts.num_experts + experts.shared_size
    return total * num_candidates // num_all


def has_predictors(model: Model) -> bool:
    """Return whether any layer has a predictor."""
    return any(layer.predictor is not None for layer in model.weights.layers)


@contextmanager
def uncounted(counters: FFNCounters) -> Iterator[None]:
    """Restore the counters afterwards: observing a model is not part of its cost."""
    before = copy(counters)
    try:
        yield
    finally:
        for each in fields(before):
            setattr(counters, each.name, getattr(before, each.name))


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if numerator > 0 and denominator > 0 else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
