"""What the server counts, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from powerinfer.serve.engine_thread import StreamWatcher
from powerinfer.serve.stepping import AnyTicket

__all__ = ["ServerMetrics"]

_FIRST_TOKEN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_GAP_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class ServerMetrics(StreamWatcher):
    """Figures in a registry of their own, so that several servers may live in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests_running = Gauge(
            "powerinfer_requests_running", "Requests that are computed now.", registry=registry
        )
        self.requests_waiting = Gauge(
            "powerinfer_requests_waiting", "Requests that wait for room.", registry=registry
        )
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
            "From the arrival of a request to the first token of a text.",
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self.gaps = Histogram(
            "powerinfer_token_gap_seconds",
            "Between a token of a text and the next.",
            buckets=_GAP_S,
            registry=registry,
        )

    def received(
        self, ticket: AnyTicket, seconds: float, num_tokens: int, *, is_first: bool
    ) -> None:
        """Note one more token of a text."""
        (self.first_token if is_first else self.gaps).observe(seconds)
        self.generated_tokens.inc(num_tokens)

    def closed(self, ticket: AnyTicket) -> None:
        """Note the tokens of a prompt, whose hits are known now."""
        self.prompt_tokens.inc(ticket.num_prompt_tokens)
        self.cached_tokens.inc(ticket.num_cached_tokens)

    def gauge(self, name: str, description: str, value: Callable[[], float]) -> None:
        """Add a figure that is asked for when it is read."""
        Gauge(name, description, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All figures in the format that Prometheus reads."""
        return generate_latest(self.registry)
