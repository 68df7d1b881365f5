"""An orchestra in the place of a model."""

import asyncio

import pytest

from orchestra_cases import ANSWER, PASS, ScriptedPolicy, plan, players, route
from powerinfer.orchestra.answerer import OrchestraAnswerer, task_of
from powerinfer.orchestra.workers.worker import Question, WorkerError
from powerinfer.serve.chat.answerer import TokenCounts
from powerinfer.serve.chat.deltas import ChatDelta
from powerinfer.serve.errors import ApiError

HELLO = [{"role": "user", "content": "Hi"}]


def test_the_trace_is_its_reasoning() -> None:
    policy = ScriptedPolicy((plan(()), route(1), PASS, ANSWER))

    async def main() -> list[ChatDelta | TokenCounts]:
        answerer = OrchestraAnswerer(players(policy))
        return [each async for each in answerer.answer(HELLO)]  # type: ignore[arg-type]

    *deltas, counts = asyncio.run(main())
    assert counts == TokenCounts(45, 9)
    assert deltas[-1] == ChatDelta(content="done")
    reasoning = "".join(each.reasoning for each in deltas if isinstance(each, ChatDelta))
    lines = reasoning.splitlines()
    assert lines[:3] == ["plan 1", "  1. x", "  1 > tiny answer: q1"]
    assert lines[3].startswith("  = 1: re: q1  [1 tokens, 0.")
    assert lines[4:] == ["verdict 1: pass: ok"]


def test_the_policy_fails() -> None:
    async def main() -> None:
        answerer = OrchestraAnswerer(players(ScriptedPolicy((WorkerError("it died"),))))
        async for _ in answerer.answer(HELLO):  # type: ignore[arg-type]
            pass

    with pytest.raises(ApiError, match="the policy failed: it died"):
        asyncio.run(main())


def test_a_client_that_leaves_ends_the_run() -> None:
    ended = []

    async def reply(question: Question) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(question)
        return ""

    async def main() -> None:
        answerer = OrchestraAnswerer(players(ScriptedPolicy((plan(()), route(1))), reply))
        pieces = answerer.answer(HELLO)  # type: ignore[arg-type]
        await anext(pieces)
        await asyncio.sleep(0)
        await pieces.aclose()

    asyncio.run(main())
    assert len(ended) == 1


def test_chats_as_tasks() -> None:
    assert task_of([{"role": "user", "content": "Hi"}]) == "Hi"
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": None}]
    assert task_of(chat) == "system: Be brief.\n\nuser: "  # type: ignore[arg-type]
