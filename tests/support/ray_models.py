"""Models for replicas on Ray that play a script, in processes of their own."""

import os
import time
from typing import Any

from api_client import embedded_tokenizer
from fake_engine import FakeEngine
from powerinfer.engine.request import Request
from powerinfer.serve.served_model import ServedModel

STEP_S = 0.05


class SlowEngine(FakeEngine):
    """Takes a moment for each step."""

    def step(self) -> Any:
        time.sleep(STEP_S)
        return super().step()


def script(request: Request, _index: int) -> list[str]:
    """The process that answers, and then as many words as the client wants."""
    return [f"{os.getpid()}", *[" word"] * 1000]


def load_slow() -> ServedModel:
    """A model that plays it."""
    return ServedModel(
        engine=SlowEngine(script), tokenizer=embedded_tokenizer(), context_length=2048
    )
