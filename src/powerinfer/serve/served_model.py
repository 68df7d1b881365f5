"""A loaded model, and what the routes of a request see of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from powerinfer.engine.engine import Engine
from powerinfer.loading.loader import LoadedModel
from powerinfer.serve.running_engine import RunningEngine
from powerinfer.serve.settings import ServerSettings
from powerinfer.serve.workers import Workers
from powerinfer.tokenizer import Tokenizer

__all__ = ["ModelContext", "ServedModel"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A loaded model.

    Attributes:
        context_length: most tokens of a prompt and its answer.
        loaded: everything about the model; None in tests with a fake engine.
    """

    engine: Engine
    tokenizer: Tokenizer
    context_length: int
    loaded: LoadedModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContext:
    """The model that a request chose, loaded at least until the request ends.

    Attributes:
        settings: of the server, with the names of this model.
        engine: computes requests.
        workers: for `run_blocking`.
    """

    settings: ServerSettings
    model: ServedModel
    engine: RunningEngine
    workers: Workers

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the model."""
        return self.model.tokenizer

    async def run_blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a slow function in the pool, so that the event loop stays responsive."""
        return await self.workers.run(function, *args, **kwargs)
