"""Policies that follow a script, workers that answer from a function, and pools of them."""

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from powerinfer.orchestra.actions import Action, FinalAnswer, Plan, Route, Subtask, Verify
from powerinfer.orchestra.policy import Decision
from powerinfer.orchestra.pool import Cost, Pool, WorkerEntry
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Permissions,
    Primitive,
)
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.runtime import Players
from powerinfer.orchestra.state import State
from powerinfer.orchestra.workers.worker import Answer, Question
from random_policy import random_action

__all__ = [
    "ANSWER",
    "PASS",
    "PRIMITIVES",
    "FakeWorker",
    "RandomPolicy",
    "ScriptedPolicy",
    "plan",
    "players",
    "pool",
    "route",
]

PASS = Verify(1, (), "ok")
ANSWER = FinalAnswer("done")


def plan(*depends: tuple[int, ...], number: int = 1, first: int = 1) -> Plan:
    """A plan of subtasks with these dependencies."""
    return Plan(number, tuple(Subtask(first + at, each, "x") for at, each in enumerate(depends)))


def route(
    subtask: int,
    worker: str = "tiny",
    primitive: str = "answer",
    *,
    query: str = "",
    number: int = 1,
) -> Route:
    return Route(number, subtask, worker, primitive, query or f"q{subtask}")


@dataclass
class ScriptedPolicy:
    """Acts in this order, and keeps the states that it saw and what was offered."""

    actions: Sequence[Action | Exception]
    states: list[State] = field(default_factory=list)
    offers: list[Offers] = field(default_factory=list)

    async def decide(self, task: str, state: State, offers: Offers) -> Decision:
        self.states.append(state)
        self.offers.append(offers)
        action = self.actions[len(self.states) - 1]
        if isinstance(action, Exception):
            raise action
        return Decision(action=action, prompt_tokens=10, tokens=2)


class RandomPolicy:
    """Walks at random through the grammar."""

    def __init__(self, choice: random.Random) -> None:
        self._choice = choice

    async def decide(self, task: str, state: State, offers: Offers) -> Decision:
        action = random_action(state.next(offers), offers, self._choice)
        return Decision(action=action, prompt_tokens=7, tokens=3)


@dataclass
class FakeWorker:
    """Answers by a function of the question, and keeps questions."""

    reply: Callable[[Question], Awaitable[str]]
    questions: list[Question] = field(default_factory=list)

    async def answer(self, question: Question) -> Answer:
        self.questions.append(question)
        return Answer(text=await self.reply(question), prompt_tokens=5, tokens=1)


async def _answer(call: Call) -> Observation:
    assert call.ask is not None
    known = " ".join(f"{number}={text}" for number, text in call.inputs.items())
    return Observation(await call.ask(f"{call.query} {known}".strip()))


async def _read(call: Call) -> Observation:
    return Observation("from a file", untrusted=True)


async def _send(call: Call) -> Observation:
    return Observation(f"sent {call.query}")


PRIMITIVES: Mapping[str, Primitive] = {
    "answer": Primitive("answer", "answers", True, False, _answer),
    "read": Primitive("read", "reads a file", False, False, _read),
    "send": Primitive("send", "sends", False, True, _send),
}


def pool(timeout_s: float = 5.0) -> Pool:
    """A cheap and a dear model, one elsewhere, and a tool."""
    cheap, dear = (
        Cost(seconds_per_token=0.01),
        Cost(seconds_per_token=0.1, price_per_million_tokens=2),
    )
    return Pool(
        workers=(
            WorkerEntry(
                name="tiny", model="t", primitives=("answer",), cost=cheap, timeout_s=timeout_s
            ),
            WorkerEntry(
                name="big", model="b", primitives=("answer",), cost=dear, timeout_s=timeout_s
            ),
            WorkerEntry(
                name="cloud",
                model="c",
                base_url="https://example.org/v1",
                primitives=("answer",),
                cost=Cost(price_per_million_tokens=5),
                timeout_s=timeout_s,
            ),
            WorkerEntry(name="tools", primitives=("read", "send"), timeout_s=timeout_s),
        ),
        policy="tiny",
    )


async def echo(question: Question) -> str:
    return f"re: {question.messages[-1]['content']}"


def players(
    policy: ScriptedPolicy | RandomPolicy,
    reply: Callable[[Question], Awaitable[str]] = echo,
    *,
    permissions: Permissions | None = None,
    timeout_s: float = 5.0,
) -> Players:
    """Everyone, with the same reply of all models."""
    workers = {name: FakeWorker(reply) for name in ("tiny", "big", "cloud")}
    return Players(
        pool=pool(timeout_s),
        policy=policy,
        workers=workers,
        primitives=PRIMITIVES,
        permissions=permissions or Permissions(),
    )
