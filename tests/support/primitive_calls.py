"""Calls of primitives, and a worker that answers from a script."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from powerinfer.orchestra import primitives
from powerinfer.orchestra.primitives.primitive import Asking, Call, Observation, Permissions

__all__ = ["ScriptedWorker", "call", "run"]


class ScriptedWorker:
    """Answers with the given texts, in their order, and keeps what it was asked."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.messages: list[str] = []
        self.schemas: list[Mapping[str, object] | None] = []

    async def __call__(
        self,
        message: str,
        *,
        system: str | None = None,
        max_tokens: int = 512,
        json_schema: Mapping[str, object] | None = None,
    ) -> str:
        self.messages.append(message)
        self.schemas.append(json_schema)
        return self.answers.pop(0)


def call(
    query: str,
    *inputs: str,
    ask: Asking | None = None,
    permissions: Permissions | None = None,
    documents: tuple[Path, ...] = (),
    has_untrusted_input: bool = False,
) -> Call:
    """A call whose inputs are the results of subtasks 1, 2, ..."""
    return Call(
        query,
        dict(enumerate(inputs, 1)),
        ask,
        permissions or Permissions(documents=documents),
        has_untrusted_input,
    )


def run(name: str, made: Call) -> Observation:
    """Run a primitive to its end."""

    async def observe() -> Observation:
        return await primitives.load()[name].run(made)

    return asyncio.run(observe())
