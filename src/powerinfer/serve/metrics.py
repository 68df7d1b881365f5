"""Metrics of the server, for Prometheus."""

from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from powerinfer.engine.request import RequestHandle
from powerinfer.engine.statistics import EngineStatistics

__all__ = ["ModelMetrics", "ServerMetrics"]

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

# By attribute of `EngineStatistics`.
_GAUGES = {
    "running": ("requests_running", "Texts that are computed now."),
    "waiting": ("requests_waiting", "Texts that wait for room."),
    "blocks_used": ("kv_blocks_used", "Blocks of keys and values of running texts."),
    "blocks_cached": ("kv_blocks_cached", "Blocks kept for prompts that begin alike."),
    "blocks": ("kv_blocks", "Blocks of keys and values."),
    "states_used": ("states_used", "States of running texts, on models with recurrent layers."),
    "states_cached": ("states_cached", "States kept for prompts that begin alike."),
    "states": ("states", "Room for states."),
    "active_share": ("active_share", "Share of neurons that a token needs, of the last steps."),
    "union_share": ("union_share", "Share of neurons that a step needs for all of its tokens."),
    "head_computed_share": ("head_computed_share", "Share of its rows that a screened head read."),
}

M = TypeVar("M", Counter, Gauge, Histogram)


class ServerMetrics:
    """Metrics in their own registry, so that several servers may run in one process."""

    def __init__(self, *, by_model: bool = False) -> None:
        """Create the metrics; `by_model` gives those of a model its name as a label."""
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "powerinfer_requests",
            "Answers by path and status.",
            ["path", "status"],
            registry=self.registry,
        )
        self._models: list[ModelMetrics] = []
        self._create(by_model=by_model)

    def _create(self, *, by_model: bool) -> None:
        self.by_model = by_model
        registry = self.registry
        labels = ["model"] if by_model else []
        self.gauges = {
            name: Gauge(f"powerinfer_{title}", text, labels, registry=registry)
            for name, (title, text) in _GAUGES.items()
        }
        self.prompt_tokens = Counter(
            "powerinfer_prompt_tokens", "Tokens of prompts.", labels, registry=registry
        )
        self.cached_tokens = Counter(
            "powerinfer_prefix_hit_tokens",
            "Tokens of prompts whose keys and values were there already.",
            labels,
            registry=registry,
        )
        self.generated_tokens = Counter(
            "powerinfer_generated_tokens", "Tokens generated.", labels, registry=registry
        )
        self.drafted_tokens = Counter(
            "powerinfer_drafted_tokens",
            "Drafted tokens that steps computed, of texts that are over.",
            labels,
            registry=registry,
        )
        self.accepted_tokens = Counter(
            "powerinfer_accepted_draft_tokens",
            "Number of these that were right.",
            labels,
            registry=registry,
        )
        self.decode_steps = Counter(
            "powerinfer_decode_steps",
            "Decode steps of texts that are over, a step counted for each of its texts.",
            labels,
            registry=registry,
        )
        self.first_token = Histogram(
            "powerinfer_time_to_first_token_seconds",
            "From the submission of a prompt to the first token of each of its texts.",
            labels,
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self.gaps = Histogram(
            "powerinfer_token_gap_seconds",
            "Between a token of a text and the next.",
            labels,
            buckets=_GAP_S,
            registry=registry,
        )
        self.loads = Counter(
            "powerinfer_model_loads", "Times that a model was loaded.", labels, registry=registry
        )
        self.is_loaded = Gauge(
            "powerinfer_model_loaded", "1 while a model is loaded.", labels, registry=registry
        )
        self._of_models = (
            *(self.prompt_tokens, self.cached_tokens, self.generated_tokens),
            *(self.drafted_tokens, self.accepted_tokens, self.decode_steps),
            *(self.first_token, self.gaps, self.loads, self.is_loaded),
        )

    def divide(self) -> None:
        """Give figures of models the model's name as a label; they begin at zero then."""
        for metric in (*self.gauges.values(), *self._of_models):
            self.registry.unregister(metric)
        self._create(by_model=True)
        for model in self._models:
            model.bind(self)

    def of(self, model: str) -> "ModelMetrics":
        """Metrics of a model; those of the server if it has but one."""
        found = ModelMetrics(self, model)
        self._models.append(found)
        return found

    def text(self) -> bytes:
        """Write all metrics in Prometheus' format."""
        return generate_latest(self.registry)


class ModelMetrics:
    """Metrics of one model; they are there from the start, with zeros."""

    def __init__(self, metrics: ServerMetrics, model: str) -> None:
        self._model = model
        self.bind(metrics)

    def bind(self, metrics: ServerMetrics) -> None:
        """Use the metrics that there are now."""

        def mine(metric: M) -> M:
            return metric.labels(self._model) if metrics.by_model else metric

        self._gauges = {name: mine(gauge) for name, gauge in metrics.gauges.items()}
        self._prompt_tokens = mine(metrics.prompt_tokens)
        self._cached_tokens = mine(metrics.cached_tokens)
        self._generated_tokens = mine(metrics.generated_tokens)
        self._drafted_tokens = mine(metrics.drafted_tokens)
        self._accepted_tokens = mine(metrics.accepted_tokens)
        self._decode_steps = mine(metrics.decode_steps)
        self._first_token = mine(metrics.first_token)
        self._gaps = mine(metrics.gaps)
        self._loads = mine(metrics.loads)
        self._is_loaded = mine(metrics.is_loaded)

    def loaded(self) -> None:
        """Count a load."""
        self._loads.inc()
        self._is_loaded.set(1)

    def left(self) -> None:
        """Clear what the model held: it is no longer loaded."""
        for gauge in (*self._gauges.values(), self._is_loaded):
            gauge.set(0)

    def received(self, seconds: float, num_tokens: int, *, is_first: bool) -> None:
        """Count tokens of a text that grew, `seconds` after it last did or was submitted."""
        (self._first_token if is_first else self._gaps).observe(seconds)
        self._generated_tokens.inc(num_tokens)

    def closed(self, handle: RequestHandle) -> None:
        """Count the tokens of a prompt, whose cache hits are known now, and those drafted."""
        self._prompt_tokens.inc(handle.num_prompt_tokens)
        self._cached_tokens.inc(handle.num_cached_tokens)
        self._drafted_tokens.inc(sum(cost.num_drafted for cost in handle.costs))
        self._accepted_tokens.inc(sum(cost.num_accepted for cost in handle.costs))
        self._decode_steps.inc(sum(cost.decode_steps for cost in handle.costs))

    def measure(self, statistics: EngineStatistics) -> None:
        """Take the statistics of an engine; gauges of shares that it lacks stay as they are."""
        for name, gauge in self._gauges.items():
            value = getattr(statistics, name)
            if value is not None:
                gauge.set(value)
