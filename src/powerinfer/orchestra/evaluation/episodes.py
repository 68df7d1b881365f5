"""Episodes: one policy's run of one task, judged, with what it cost."""

import asyncio
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from powerinfer.orchestra.evaluation.ablations import Ablated
from powerinfer.orchestra.evaluation.baselines import Baseline, Choose
from powerinfer.orchestra.evaluation.reward import Objective
from powerinfer.orchestra.evaluation.simulating import Simulation
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import SimulatedPool, Split, Whole
from powerinfer.orchestra.policy import ModelPolicy, Policy
from powerinfer.orchestra.rules import violations
from powerinfer.orchestra.runtime import Outcome, Players, run_task

__all__ = ["Episode", "Run", "real_run", "simulated_run"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What came of a task.

    Attributes:
        policy: its name.
        task: its id.
        seconds: of workers and policy; simulated ones for a simulated pool, without the policy.
        routes: calls of workers.
        escalations: rounds after the first.
        protocol_errors: rules of the protocol that were broken.
        error: why there is no answer.
        expected: exact expected reward of what the policy chose; None where it is not known.
        best: exact expected reward of the best choice; None where the truth is not known.
    """

    policy: str
    task: str
    kind: str
    answer: str
    is_right: bool
    seconds: float
    prompt_tokens: int = 0
    tokens: int = 0
    price: float = 0.0
    routes: int = 0
    escalations: int = 0
    protocol_errors: int = 0
    error: str = ""
    expected: float | None = None
    best: float | None = None

    @property
    def is_valid(self) -> bool:
        """True if it has an answer and broke no rule."""
        return not self.error and not self.protocol_errors

    def reward(self, objective: Objective) -> float:
        """Return its reward."""
        cost = objective.cost(self.seconds, self.price)
        return objective.reward(cost, is_right=self.is_right, is_valid=self.is_valid)


Run: TypeAlias = Callable[[Task, str, Policy], tuple[Episode, Outcome]]
"""Lets a policy, named by the second argument, do a task."""


def simulated_run(pool: SimulatedPool, runner: asyncio.Runner) -> Run:
    """Make a function that runs tasks with a simulated pool."""

    def run(task: Task, name: str, policy: Policy) -> tuple[Episode, Outcome]:
        simulation = Simulation(pool, task)
        players = simulation.players(policy)
        outcome = runner.run(run_task(task.question, players))
        choose = policy.choose if isinstance(policy, Baseline) else None
        episode = replace(
            _judged(task, name, outcome, players),
            seconds=sum(each.seconds for each in simulation.calls),
            price=sum(each.price for each in simulation.calls),
            tokens=sum(each.tokens for each in simulation.calls),
            expected=None if choose is None else _expected(simulation, choose),
            best=pool.best(task),
        )
        return episode, outcome

    return run


def _expected(simulation: Simulation, choose: Choose) -> float | None:
    """Exact expected reward of a choice, if it asks the whole task or its steps."""
    task, pool = simulation.task, simulation.pool
    steps = choose(task.question)
    asked = [simulation.nearest(query) for query, _ in steps]
    arms = [arm for _, arm in steps]
    if not pool.skills.keys() >= set(arms):
        return None
    if asked == [0]:
        return pool.value(task, Whole(arms[0]))
    if asked == ([1, 2] if task.parts else [0, 0]):
        return pool.value(task, Split(arms[0], arms[1]))
    return None


def real_run(players: Players, runner: asyncio.Runner) -> Run:
    """Make a function that runs tasks with real workers.

    Args:
        players: its policy is replaced, its permissions get the attachments of each task.
        runner: of an event loop that no other one shares the workers with.
    """

    def run(task: Task, name: str, policy: Policy) -> tuple[Episode, Outcome]:
        with tempfile.TemporaryDirectory(prefix="powerinfer-task-") as folder:
            documents, databases = task.attachments.write(Path(folder) / "attached")
            permissions = replace(
                players.permissions,
                documents=(*players.permissions.documents, *documents),
                databases=(*players.permissions.databases, *databases),
            )
            if isinstance(policy, ModelPolicy | Ablated):
                policy = policy.told(permissions)
            taking_part = replace(players, policy=policy, permissions=permissions)
            outcome = runner.run(run_task(task.question, taking_part))
        return _judged(task, name, outcome, taking_part), outcome

    return run


def _judged(task: Task, name: str, outcome: Outcome, players: Players) -> Episode:
    offered = {each.name: each.primitives for each in players.pool.workers}
    broken = () if outcome.error else violations(outcome.state.turns, offered)
    return Episode(
        policy=name,
        task=task.id,
        kind=task.kind,
        answer=outcome.answer,
        is_right=not outcome.error and task.is_right(outcome.answer),
        seconds=outcome.ledger.seconds,
        prompt_tokens=outcome.ledger.prompt_tokens,
        tokens=outcome.ledger.tokens,
        price=outcome.ledger.price,
        routes=len(outcome.state.routes),
        escalations=max(outcome.state.round - 1, 0),
        protocol_errors=len(broken),
        error=outcome.error,
    )
