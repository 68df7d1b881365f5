"""A server in this process whose models play scripts, and are loaded when they are asked for."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from api_client import Api, embedded_tokenizer
from fake_engine import FakeEngine
from patience import PATIENCE_S
from powerinfer.loading.loader import WORKING_BYTES, Progress
from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.model_source import ModelFacts, ModelSource
from powerinfer.serve.pooled_model import PooledModel
from powerinfer.serve.served_model import ServedModel
from powerinfer.serve.settings import ServerSettings

__all__ = ["FakeModel", "PoolApi", "running_pool"]


@dataclass
class FakeModel:
    """A model whose texts are its name and the number of its load, again and again.

    Attributes:
        path: a file that is there.
        needed_bytes: memory that it takes.
        error: what its load raises.
        engines: of its loads so far.
        may_load: cleared, a load that is half done waits until it is set.
    """

    name: str
    path: Path
    needed_bytes: int = 1
    error: Exception | None = None
    engines: list[FakeEngine] = field(default_factory=list)
    may_load: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.path.write_text(self.name)
        self.may_load.set()

    @property
    def engine(self) -> FakeEngine:
        """The engine of the last load."""
        return self.engines[-1]

    def source(self) -> ModelSource:
        """What a server is given of it; it has another name, too."""
        return ModelSource(
            names=(self.name, f"{self.name}.gguf"),
            path=self.path,
            load=self._load,
            read_facts=self._read_facts,
        )

    def _load(self, progress: Progress) -> ServedModel:
        progress(1, 2)
        assert self.may_load.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        word = f"{self.name}{len(self.engines) + 1} "
        self.engines.append(FakeEngine([word] * 20))
        tokenizer = embedded_tokenizer()
        return ServedModel(engine=self.engine, tokenizer=tokenizer, context_length=512)

    def _read_facts(self) -> ModelFacts:
        return ModelFacts(
            weight_bytes=7, needed_bytes=self.needed_bytes, context_length=512, trained_length=999
        )


class PoolApi(Api):
    """A client of several models."""

    def ask(self, model: FakeModel | str | None = None) -> Any:
        """The first word of a completion, which must succeed."""
        answer = self.complete(model)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"].split(" ")[0]

    def complete(self, model: FakeModel | str | None = None) -> Any:
        """The response to a completion; None names no model."""
        body: dict[str, Any] = {"prompt": "Hi", "max_tokens": 2}
        if model is not None:
            body["model"] = model.name if isinstance(model, FakeModel) else model
        return self.post("/v1/completions", json=body)

    def state(self, model: FakeModel) -> Any:
        """The state of a model as `/health` has it."""
        return self.get("/health").json()["models"][model.name]["status"]

    def pooled(self, model: FakeModel) -> PooledModel:
        """The server's record of a model."""
        return self.context.models.find(model.name)


@contextmanager
def running_pool(
    models: Sequence[FakeModel],
    keep_alive_s: float | None = None,
    memory_bytes: int | None = None,
    **settings: Any,
) -> Iterator[PoolApi]:
    """A server of several models.

    Args:
        models: all that it serves.
        keep_alive_s: how long they stay unused.
        memory_bytes: room for models; None: nobody knows.
        **settings: of `ServerSettings`.
    """
    sources = [model.source() for model in models]
    context = ServerContext(ServerSettings(**settings), sources, keep_alive_s)
    free = None if memory_bytes is None else memory_bytes + WORKING_BYTES
    context.models.available_bytes = lambda: free
    api = PoolApi(
        build_app(context), base_url="http://127.0.0.1:8080", raise_server_exceptions=False
    )
    api.context = context
    with api:
        yield api
