"""Settings of a server."""

from dataclasses import dataclass, field

from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Flags of `powerinfer serve`, except those of the engine.

    Attributes:
        other_names: further names that clients may use.
        parallel: most texts that are computed at once.
        max_queue: most requests that wait; further ones are refused.
        api_keys: keys, one of which requests must have; empty if none is needed.
        drain_timeout_s: how long running requests may take when the server shuts down.
        request_timeout_s: how long a request may take; None for no limit.
        cors_origins: origins of web pages that may use the API.
        reuses_answers: share keys and values of answers, too.
        max_tokens: default limit of an answer in a chat; None for the rest of the context.
        is_story_model: the model of the package, which continues stories.
        read_timeout_s: how long a client may take to send a head or a body, or to read.
    """

    model_name: str = "model"
    other_names: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    parallel: int = 8
    max_queue: int = 64
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    drain_timeout_s: float = 30.0
    request_timeout_s: float | None = None
    cors_origins: tuple[str, ...] = ()
    reuses_answers: bool = False
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None
    is_story_model: bool = False
    max_body_bytes: int = 8 << 20
    read_timeout_s: float = 60.0

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names of the model."""
        return (self.model_name, *self.other_names)
