"""How a server is set up."""

from dataclasses import dataclass, field

from powerinfer.sampling.sampling_params import SamplingParams

__all__ = ["ServerSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What the flags of `powerinfer serve` say, but for those of the engine.

    Attributes:
        model_name: under which clients find the model.
        other_names: under which they may name it, too.
        host: address to listen on.
        port: of TCP.
        parallel: most texts that are computed at once.
        max_queue: most requests that wait; further ones are refused.
        api_keys: of which requests must bring one; empty if none is needed.
        drain_timeout_s: how long running requests may go on when the server is to end.
        request_timeout_s: how long a request may take; None for no limit.
        cors_origins: of web pages that may use the API.
        reuses_answers: keys and values of answers are shared, too.
        sampling: what a request does not say.
        max_tokens: of an answer in a chat that sets no limit; None until the context is full.
        is_story_model: the model of the package, which goes on with stories.
        max_body_bytes: of a request.
        read_timeout_s: how long a head or a body may take to arrive, or a reader to read.
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
