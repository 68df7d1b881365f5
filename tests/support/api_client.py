"""A client of a server that runs in this process, for tests of routes: no port, no model."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

from starlette.testclient import TestClient

from fake_engine import FakeEngine, Script
from powerinfer.gguf import open_gguf
from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.served_model import ModelContext, ServedModel
from powerinfer.serve.settings import ServerSettings
from powerinfer.store.default_model import default_model_path
from powerinfer.tokenizer import Tokenizer

__all__ = ["Api", "embedded_tokenizer", "events", "running_api"]


@cache
def embedded_tokenizer() -> Tokenizer:
    """Of the model in the package; it has no chat template."""
    return Tokenizer.from_gguf(open_gguf(default_model_path()))


class Api(TestClient):
    """Starlette's client, with what the server is made of.

    Attributes:
        context: of the server.
        fake: its engine.
    """

    context: ServerContext
    fake: FakeEngine

    @property
    def model(self) -> ModelContext:
        """The model that was given to the server."""
        resident = self.context.models.models[0].resident
        assert resident is not None
        return resident.context


@contextmanager
def running_api(
    script: Script = ("Hello", ",", " world", "!"),
    *,
    tokenizer: Tokenizer | None = None,
    fake: FakeEngine | None = None,
    is_loading: bool = False,
    has_state: bool = False,
    **settings: Any,
) -> Iterator[Api]:
    """A server with a `FakeEngine`.

    Args:
        script: of the engine's texts.
        tokenizer: the embedded model's if None.
        fake: the engine; made from the script if None.
        is_loading: give it no model yet.
        has_state: the model has layers with state.
        **settings: of `ServerSettings`.
    """
    context = ServerContext(ServerSettings(**{"model_name": "test-model", **settings}))
    engine = fake or FakeEngine(script)
    app = build_app(context)
    api = Api(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)
    api.context, api.fake = context, engine

    config = SimpleNamespace(state_mixers={0: None} if has_state else {})
    loaded: Any = SimpleNamespace(model=SimpleNamespace(config=config))

    async def start() -> None:
        context.start(
            ServedModel(
                engine=engine,
                tokenizer=tokenizer or embedded_tokenizer(),
                context_length=engine.context_length,
                loaded=loaded if has_state else None,
            )
        )

    with api:
        if not is_loading:
            assert api.portal is not None
            api.portal.call(start)
        yield api


def events(text: str) -> list[str]:
    """The data of each server-sent event of a response."""
    parts = [part for part in text.split("\n\n") if part]
    return [
        line.removeprefix("data: ")
        for part in parts
        for line in part.split("\n")
        if line.startswith("data: ")
    ]
