"""Metrics of the server, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from powerinfer.engine.request import EngineStatistics, RequestHandle

__all__ = ["ServerMetrics"]

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
}


class ServerMetrics:
    """Metrics in their own registry, so that several servers may run in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._gauges = {
            name: Gauge(f"powerinfer_{title}", text, registry=registry)
            for name, (title, text) in _GAUGES.items()
        }
        self.requests = Counter(
            "powerinfer_requests",
            "Answers by path and status.",
            ["path", "status"],
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "powerinfer_prompt_tokens", "Tokens of prompts.", registry=registry
        )
        self.cached_tokens = Counter(
            "powerinfer_prefix_hit_tokens",
            "Tokens of prompts whose keys and values were there already.",
            registry=registry,
        )
        self.generated_tokens = Counter(
            "powerinfer_generated_tokens", "Tokens generated.", registry=registry
        )
        self.first_token = Histogram(
            "powerinfer_time_to_first_token_seconds",
            "From the submission of a prompt to the first token of each of its texts.",
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self.gaps = Histogram(
            "powerinfer_token_gap_seconds",
            "Between a token of a text and the next.",
            buckets=_GAP_S,
            registry=registry,
        )

    def received(self, seconds: float, num_tokens: int, *, is_first: bool) -> None:
        """Count tokens of a text that grew, `seconds` after it last did or was submitted."""
        (self.first_token if is_first else self.gaps).observe(seconds)
        self.generated_tokens.inc(num_tokens)

    def closed(self, handle: RequestHandle) -> None:
        """Count the tokens of a prompt, whose cache hits are known now."""
        self.prompt_tokens.inc(handle.num_prompt_tokens)
        self.cached_tokens.inc(handle.num_cached_tokens)

    def measure(self, statistics: EngineStatistics) -> None:
        """Take the statistics of an engine; gauges of shares that it lacks stay as they are."""
        for name, gauge in self._gauges.items():
            value = getattr(statistics, name)
            if value is not None:
                gauge.set(value)

    def text(self) -> bytes:
        """Write all metrics in Prometheus' format."""
        return generate_latest(self.registry)
