"""An orchestra as a model of the server: its trace is the reasoning of its answer."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from powerinfer.orchestra.runtime import Event, Outcome, Players, run_task
from powerinfer.orchestra.trace import event_lines
from powerinfer.serve.chat.answerer import TokenCounts
from powerinfer.serve.chat.deltas import ChatDelta
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.errors import ApiError

__all__ = ["ORCHESTRA", "OrchestraAnswerer", "task_of"]

ORCHESTRA = "orchestra"
"""Its name for clients."""


class OrchestraAnswerer:
    """Does the task of each chat; several at once share models and threads."""

    def __init__(self, players: Players) -> None:
        """Use these players, whose models are the server's."""
        self._players = players

    async def answer(
        self, messages: Sequence[ChatMessage]
    ) -> AsyncGenerator[ChatDelta | TokenCounts, None]:
        """Yield a line of reasoning for each event, then the answer; see `Answerer`.

        Raises:
            ApiError: the policy failed.
        """
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        work = run_task(task_of(messages), self._players, events.put_nowait)
        running: asyncio.Task[Outcome] = asyncio.create_task(work)
        running.add_done_callback(lambda _: events.put_nowait(None))
        try:
            while (event := await events.get()) is not None:
                for line in event_lines(event):
                    yield ChatDelta(reasoning=line + "\n")
            outcome = await running
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        if outcome.error:
            raise ApiError(outcome.error, status=500, code="orchestra_failed")
        yield ChatDelta(content=outcome.answer)
        yield TokenCounts(outcome.ledger.prompt_tokens, outcome.ledger.tokens)


def task_of(messages: Sequence[ChatMessage]) -> str:
    """Write a chat as one task: its only message, or all of them with who said them."""
    said = [(each["role"], each["content"] or "") for each in messages]
    if len(said) == 1:
        return said[0][1]
    return "\n\n".join(f"{role}: {content}" for role, content in said)
