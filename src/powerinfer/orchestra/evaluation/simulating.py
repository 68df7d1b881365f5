"""Plays a simulated pool for one task: real policies and the real runtime, workers of known truth.

A worker answers the question that its query is nearest to: the whole task or one of its two steps.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import Arm, SimulatedPool, Skill
from powerinfer.orchestra.policy import Policy
from powerinfer.orchestra.pool import Cost, Pool, WorkerEntry
from powerinfer.orchestra.primitives.primitive import (
    Call,
    Observation,
    Permissions,
    Primitive,
    PrimitiveError,
)
from powerinfer.orchestra.runtime import Players
from powerinfer.orchestra.workers.worker import Answer, Question, WorkerError

__all__ = ["Simulation", "simulated_workers"]

_TOOLS = "tools"
_WRONG = "a wrong answer"
_FAILURE = "no answer found"
_SKIPPED = "its input is missing"
# The runtime asks these of the user's permissions; here nothing is opened.
_ALL_ALLOWED = Permissions(
    allowed=frozenset({"execute_python"}), documents=(Path("-"),), databases=(Path("-"),)
)


@dataclass
class Simulation:
    """One task and the calls made for it.

    Attributes:
        calls: skills that were used, in order.
    """

    pool: SimulatedPool
    task: Task
    calls: list[Skill] = field(default_factory=list)

    def players(self, policy: Policy) -> Players:
        """Gather who takes part."""
        entries = simulated_workers(self.pool)
        return Players(
            pool=entries,
            policy=policy,
            workers={each.name: _Model(self, each.name) for each in entries.workers if each.model},
            primitives={arm.primitive: _primitive(self, arm) for arm in self.pool.arms},
            permissions=_ALL_ALLOWED,
        )

    def ask(self, arm: Arm, query: str, inputs: Mapping[str, str]) -> str:
        """Answer a query by the truth.

        Raises:
            PrimitiveError: the arm reports that it failed.
        """
        step = self.nearest(query)
        is_second = step == 2
        if is_second and any(_FAILURE in each or _SKIPPED in each for each in inputs.values()):
            raise PrimitiveError(_SKIPPED)
        kind = self.task.parts[step - 1].kind if step else self.task.kind
        skill = self.pool.skills[arm][kind]
        self.calls.append(skill)
        if is_second and self.task.parts[0].gold not in inputs.values():
            return _WRONG
        if self.pool.difficulty(self.task) < skill.right:
            return self.task.parts[step - 1].gold if step else self.task.gold
        if self.pool.tells(self.task, arm, kind):
            raise PrimitiveError(_FAILURE)
        return _WRONG

    def nearest(self, query: str) -> int:
        """Find what a query asks: 0 for the whole task, else the number of a step."""
        texts = (self.task.question, *(each.question for each in self.task.parts))
        words = _words(query)
        return max(range(len(texts)), key=lambda at: (_overlap(words, _words(texts[at])), -at))


class _Model:
    """A worker that is a model."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._name = name

    async def answer(self, question: Question) -> Answer:
        """Answer a question that a simulated primitive asks."""
        asked = json.loads(question.messages[-1]["content"])
        arm = Arm(self._name, asked["primitive"])
        before = len(self._simulation.calls)
        try:
            text = self._simulation.ask(arm, asked["query"], asked["inputs"])
        except PrimitiveError as error:
            raise WorkerError(str(error)) from None
        return Answer(
            text=text, tokens=sum(each.tokens for each in self._simulation.calls[before:])
        )


def simulated_workers(pool: SimulatedPool) -> Pool:
    """Describe the workers as a pool file would."""
    primitives: dict[str, list[str]] = {}
    for arm in pool.arms:
        primitives.setdefault(arm.worker, []).append(arm.primitive)
    workers = tuple(
        WorkerEntry(
            name=name,
            primitives=tuple(each),
            model=None if name == _TOOLS else name,
            cost=_cost(pool, Arm(name, each[0])),
        )
        for name, each in primitives.items()
    )
    return Pool(workers=workers, policy=workers[0].name)


def _cost(pool: SimulatedPool, arm: Arm) -> Cost:
    """Mean figures of an arm, per call."""
    skills = list(pool.skills[arm].values())
    tokens = max(skills[0].tokens, 1)
    return Cost(
        seconds_per_call=sum(each.seconds for each in skills) / len(skills),
        price_per_million_tokens=sum(each.price for each in skills) / len(skills) / tokens * 1e6,
    )


def _primitive(simulation: Simulation, arm: Arm) -> Primitive:
    is_tool = arm.worker == _TOOLS

    async def run(call: Call) -> Observation:
        inputs = {str(number): text for number, text in call.inputs.items()}
        if call.ask is None:
            return Observation(simulation.ask(arm, call.query, inputs))
        asked = {"primitive": arm.primitive, "query": call.query, "inputs": inputs}
        return Observation(await call.ask(json.dumps(asked)))

    return Primitive(
        name=arm.primitive,
        summary=arm.primitive.replace("_", " "),
        needs_model=not is_tool,
        leaves_machine=False,
        run=run,
    )


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _overlap(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / len(one | other) if one or other else 0.0
