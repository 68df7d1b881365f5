"""Simulated pools whose truth is known, so that the best possible reward is exact.

Every task has a hidden difficulty u, uniform in [0, 1): a route answers a kind of question
rightly if u is below its probability for that kind. So a route that is likelier to be right is
right whenever a weaker one is, and to ask several and compare their answers gains nothing. A wrong
route reports failure with a known probability, independently; otherwise it gives a wrong answer
that looks like any other, the same for all routes. A step that starts from a wrong result never
reports failure; one whose input is missing costs nothing.
"""

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, TypeAlias

from powerinfer.orchestra.evaluation.reward import CostScale, Objective
from powerinfer.orchestra.evaluation.task import Task

__all__ = ["Arm", "Attempt", "SimulatedPool", "Skill", "Split", "Whole", "simulate_pool"]


class Arm(NamedTuple):
    """A choice of a route: a worker and a primitive."""

    worker: str
    primitive: str

    def __str__(self) -> str:
        return f"{self.worker}/{self.primitive}"


@dataclass(frozen=True, slots=True)
class Skill:
    """How an arm does on one kind of question.

    Attributes:
        right: probability of a right answer.
        tells: probability that a wrong one is reported as a failure.
    """

    right: float
    tells: float
    seconds: float
    price: float
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Whole:
    """Ask one arm the whole question."""

    arm: Arm


@dataclass(frozen=True, slots=True)
class Split:
    """Let one arm do the first step and one the second, or only that if the first is done."""

    first: Arm
    second: Arm


Attempt: TypeAlias = Whole | Split


@dataclass(frozen=True, slots=True)
class _Belief:
    """What is known after some attempts; the hidden difficulty is in [low, high)."""

    low: float = 0.0
    high: float = 1.0
    is_first_done: bool = False
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """What may come of an attempt.

    Attributes:
        reward: expected, counting the difficulties that the belief leaves.
        failures: reported ones, with the share of the difficulties left that are reported.
    """

    reward: float
    failures: tuple[tuple[float, _Belief], ...]


@dataclass(frozen=True, eq=False)
class SimulatedPool:
    """The truth about a pool: skills by arm and kind of question."""

    seed: int
    skills: Mapping[Arm, Mapping[str, Skill]]
    objective: Objective

    @property
    def arms(self) -> tuple[Arm, ...]:
        """All arms."""
        return tuple(self.skills)

    def difficulty(self, task: Task) -> float:
        """Return the hidden difficulty of a task."""
        return random.Random(f"{self.seed}/{task.id}").random()

    def tells(self, task: Task, arm: Arm, kind: str) -> bool:
        """Return whether a wrong answer of an arm to a task, or to its part, is reported."""
        drawn = random.Random(f"{self.seed}/{task.id}/{arm}/{kind}").random()
        return drawn < self.skills[arm][kind].tells

    def cost(self, arm: Arm, kind: str) -> float:
        """Return the cost of a call."""
        skill = self.skills[arm][kind]
        return self.objective.cost(skill.seconds, skill.price)

    def value(self, task: Task, attempt: Attempt) -> float:
        """Return the expected reward of one attempt, without repair."""
        return self._outcomes(_steps(task), _Belief(), attempt).reward

    def best(self, task: Task, *, rounds: int = 3, may_split: bool = True) -> float:
        """Return the most expected reward that any choice of routes can have: the oracle's.

        It is exact, found by trying all choices. Restricted to one round or without splitting, it
        tells what verification and splitting are worth. (Who answers without routes may do better.)
        """
        return _best(self, _steps(task), rounds, may_split=may_split)

    def _search(
        self, steps: tuple[str, ...], belief: _Belief, rounds: int, *, may_split: bool
    ) -> float:
        """Search all choices that are left; branches that cannot win are not searched."""
        if not rounds:
            return 0.0
        attempts = self._attempts(steps, belief, may_split=may_split)
        found = [self._outcomes(steps, belief, attempt) for attempt in attempts]
        bounds = [self._bound(each) for each in found]
        best = 0.0
        for bound, outcomes in sorted(zip(bounds, found, strict=True), key=lambda each: -each[0]):
            if bound <= best:
                break
            later = sum(
                share * self._search(steps, left, rounds - 1, may_split=may_split)
                for share, left in outcomes.failures
            )
            best = max(best, outcomes.reward + later)
        return best

    def _bound(self, outcomes: _Outcomes) -> float:
        """What the outcomes are worth if all failures end well at no further cost."""
        return outcomes.reward + sum(
            share * max(left.high - left.low, 0.0) * self.objective.of_right(left.cost)
            for share, left in outcomes.failures
        )

    def _attempts(
        self, steps: tuple[str, ...], belief: _Belief, *, may_split: bool
    ) -> Iterator[Attempt]:
        for arm in self.arms:
            if self.skills[arm][steps[0]].right > belief.low:
                yield Whole(arm)
        if not may_split or len(steps) == 1:
            return
        firsts = self.arms[:1] if belief.is_first_done else self.arms
        for first in firsts:
            is_able = self.skills[first][steps[1]].right > belief.low
            if is_able or belief.is_first_done:
                for second in self.arms:
                    if self.skills[second][steps[2]].right > belief.low:
                        yield Split(first, second)

    def _outcomes(self, steps: tuple[str, ...], belief: _Belief, attempt: Attempt) -> _Outcomes:
        low, high, cost = belief.low, belief.high, belief.cost
        if isinstance(attempt, Whole):
            skill = self.skills[attempt.arm][steps[0]]
            cost += self.cost(attempt.arm, steps[0])
            failed = _Belief(max(low, skill.right), high, belief.is_first_done, cost)
            return _Outcomes(self._gain(belief, skill.right, cost), ((skill.tells, failed),))
        is_whole = len(steps) == 1  # two answers to the same question, of which the last counts
        kinds = steps * 3 if is_whole else steps
        first, second = self.skills[attempt.first][kinds[1]], self.skills[attempt.second][kinds[2]]
        failures = []
        if not belief.is_first_done:
            cost += self.cost(attempt.first, kinds[1])
            failures.append((first.tells, _Belief(max(low, first.right), high, cost=cost)))
            high = high if is_whole else min(high, first.right)
        cost += self.cost(attempt.second, kinds[2])
        left = _Belief(max(low, second.right), high, is_first_done=True, cost=cost)
        failures.append((second.tells, left))
        return _Outcomes(self._gain(belief, min(high, second.right), cost), tuple(failures))

    def _gain(self, belief: _Belief, right: float, cost: float) -> float:
        """Reward of answers that are right below a difficulty."""
        return max(min(right, belief.high) - belief.low, 0.0) * self.objective.of_right(cost)


@cache
def _best(pool: SimulatedPool, steps: tuple[str, ...], rounds: int, *, may_split: bool) -> float:
    return pool._search(steps, _Belief(), rounds, may_split=may_split)


def _steps(task: Task) -> tuple[str, ...]:
    """The kind of a task, and those of its steps if it can be split."""
    return (task.kind, *(each.kind for each in task.parts))


_MODELS = {"small": (0.0, 0.4, 0.0), "medium": (1.6, 2.5, 0.0), "large": (3.2, 1.5, 0.01)}
"""Strength, seconds and price of an answer."""
_TOOLS: Mapping[str, tuple[float, frozenset[str]]] = {
    "symbolic_math": (0.3, frozenset({"arithmetic", "algebra"})),
    "execute_python": (0.6, frozenset({"arithmetic", "dates", "csv_table"})),
    "parse_structured": (0.05, frozenset({"json_value"})),
    "database_query": (0.1, frozenset({"database"})),
    "read_document": (0.1, frozenset({"document_lookup"})),
}
"""Seconds of a call, and what it is made for."""
_DIFFICULTY = {
    "algebra": 2.0,
    "arithmetic": 2.0,
    "csv_table": 1.5,
    "database": 3.0,
    "dates": 2.0,
    "document_lookup": 1.0,
    "json_value": 0.5,
    "two_steps": 3.5,
}
_SECOND_PRICE = 0.001


@cache
def simulate_pool(seed: int, cost_weight: float = 0.1) -> SimulatedPool:
    """Draw a pool: three models, each answering at once or after reasoning, and five tools."""
    choice = random.Random(f"pool/{seed}")
    skills: dict[Arm, dict[str, Skill]] = {}
    for name, (strength, seconds, price) in _MODELS.items():
        strength += choice.gauss(0.0, 0.4)
        for primitive, bonus, longer in (("direct_answer", 0.0, 1.0), ("reason", 0.9, 3.0)):
            skills[Arm(name, primitive)] = {
                kind: Skill(
                    right=_sigmoid(strength + bonus - difficulty + choice.gauss(0.0, 0.6)),
                    tells=choice.uniform(0.05, 0.4),
                    seconds=seconds * longer * choice.uniform(0.7, 1.4),
                    price=price * longer * choice.uniform(0.7, 1.4),
                    tokens=round(20 * longer),
                )
                for kind, difficulty in _DIFFICULTY.items()
            }
    for primitive, (seconds, made_for) in _TOOLS.items():
        skills[Arm("tools", primitive)] = {
            kind: Skill(
                right=choice.uniform(0.8, 0.99) if kind in made_for else choice.uniform(0.0, 0.04),
                tells=choice.uniform(0.7, 0.98),
                seconds=seconds * choice.uniform(0.7, 1.4),
                price=0.0,
            )
            for kind in _DIFFICULTY
        }
    costs = [
        each.price + _SECOND_PRICE * each.seconds
        for by_kind in skills.values()
        for each in by_kind.values()
    ]
    objective = Objective(
        scale=CostScale.of(costs), cost_weight=cost_weight, second_price=_SECOND_PRICE
    )
    return SimulatedPool(seed, skills, objective)


def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))
