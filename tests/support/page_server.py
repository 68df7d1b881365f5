"""A server on a port of its own whose engine plays a script, for a browser to look at."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from api_client import embedded_tokenizer
from fake_engine import FakeEngine, Script
from patience import PATIENCE_S
from powerinfer.engine.request import Output, RequestHandle
from powerinfer.serve.app import build_app
from powerinfer.serve.context import ServerContext
from powerinfer.serve.model_source import ModelSource
from powerinfer.serve.served_model import ServedModel
from powerinfer.serve.settings import ServerSettings

__all__ = ["PageServer", "SlowEngine", "page_server"]


class SlowEngine(FakeEngine):
    """Lets time pass in each step, so that a browser sees an answer grow."""

    step_s = 0.0

    def step(self) -> list[tuple[RequestHandle, Output]]:
        time.sleep(self.step_s)
        return super().step()


@dataclass
class PageServer:
    """A server that runs.

    Attributes:
        url: of the page.
        fake: its engine; tests change its script.
        context: of the server.
    """

    url: str
    fake: SlowEngine
    context: ServerContext

    def play(self, script: Script, step_s: float = 0.0) -> None:
        """What the next answers are, and how long each token takes."""
        self.fake.script, self.fake.step_s = script, step_s


@contextmanager
def page_server(
    script: Script = ("Hello", " there."), sources: Sequence[ModelSource] = (), **settings: Any
) -> Iterator[PageServer]:
    """Run one in a thread.

    Args:
        script: of the engine's texts.
        sources: several models instead of the engine.
        **settings: of `ServerSettings`.
    """
    context = ServerContext(ServerSettings(**{"model_name": "test-model", **settings}), sources)
    fake = SlowEngine(script, context_length=100_000)
    server = uvicorn.Server(
        uvicorn.Config(build_app(context), log_level="warning", timeout_graceful_shutdown=1)
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        runs = threading.Thread(target=_run, args=(server, context, fake, listener), daemon=True)
        runs.start()
        deadline = time.monotonic() + PATIENCE_S
        while not server.started and runs.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        assert server.started
        try:
            yield PageServer(f"http://127.0.0.1:{port}/", fake, context)
        finally:
            server.should_exit = True
            runs.join(PATIENCE_S)


def _run(
    server: uvicorn.Server, context: ServerContext, fake: SlowEngine, listener: socket.socket
) -> None:
    async def serve() -> None:
        if context.models.is_one:
            context.start(
                ServedModel(
                    engine=fake, tokenizer=embedded_tokenizer(), context_length=fake.context_length
                )
            )
        await server.serve([listener])

    asyncio.run(serve())
