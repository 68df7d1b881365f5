"""Baselines: how they choose, and how they play by the protocol.

A baseline decides everything from the text of the task: which arm gets the whole of it, or which
two arms get its halves. It trusts the result.
"""

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from powerinfer.orchestra.actions import FinalAnswer, Plan, Route, Subtask, Verify
from powerinfer.orchestra.evaluation.bandit import Bandit, Trial
from powerinfer.orchestra.evaluation.truth import Arm
from powerinfer.orchestra.policy import Decision
from powerinfer.orchestra.pool import Pool
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import State

__all__ = ["FIXED", "Baseline", "Choose", "always", "baselines", "halves", "table_by_kind"]

Choose: TypeAlias = Callable[[str], tuple[tuple[str, Arm], ...]]
"""From a task's text its steps in order, each with its arm; one for the whole task."""

FIXED = "direct with "
"""Begins the names of the baselines that always route to the same arm."""
_NO_ANSWER = "no answer"
_ERROR = "error: "
_PRIOR_TRIALS = 1.0


@dataclass(frozen=True)
class Baseline:
    """A policy that follows a choice; see `Policy`."""

    name: str
    choose: Choose

    async def decide(self, task: str, state: State, offers: Offers) -> Decision:
        """Plan the steps, route each, accept the results, answer with the last."""
        due = state.next(offers)
        if due.must_verify:
            return Decision(action=Verify(due.round, (), "not checked"))
        if due.to_route is not None:
            query, arm = self.choose(task)[due.to_route.id - 1]
            return Decision(action=Route(due.round, due.to_route.id, *arm, query))
        steps = self.choose(task)
        is_offered = all(arm.primitive in offers.get(arm.worker, ()) for _, arm in steps)
        if due.most_subtasks >= len(steps) and is_offered and not state.observations:
            subtasks = tuple(
                Subtask(number, (number - 1,) if number > 1 else (), text)
                for number, (text, _) in enumerate(steps, 1)
            )
            return Decision(action=Plan(due.round, subtasks))
        return Decision(action=FinalAnswer(_answer(state)))


def _answer(state: State) -> str:
    if not state.observations:
        return _NO_ANSWER
    text = state.observations[max(state.observations)].text.strip()
    return _NO_ANSWER if not text or text.startswith(_ERROR) else text


def baselines(
    pool: Pool, arms: Sequence[Arm], trials: Sequence[Trial], kinds: Mapping[str, str], seed: int
) -> list[Baseline]:
    """Make all baselines.

    Args:
        arms: that the pool offers.
        trials: ledger to learn from; without any, those that learn are left out.
        kinds: of tasks by their text; only the table by kind is told.
        seed: of the random one.
    """
    # Tools cost least, but do not answer any question.
    models = [arm for arm in arms if not pool[arm.worker].is_tool] or list(arms)
    ranked = sorted(models, key=lambda arm: pool[arm.worker].cost.rank)
    strongest = _strongest(ranked, trials)
    found = [
        *(Baseline(f"{FIXED}{arm}", always(arm)) for arm in arms),
        Baseline(f"cheapest ({ranked[0]})", always(ranked[0])),
        Baseline(f"strongest ({strongest})", always(strongest)),
        Baseline("random", _at_random(arms, seed)),
    ]
    if trials:
        bandit = Bandit.learned(arms, trials)
        found += [
            Baseline("table by kind (told the kind)", table_by_kind(arms, trials, kinds)),
            Baseline("bandit", lambda task: ((task, bandit.choose(task)),)),
            Baseline("always split (by the bandit)", _always_split(bandit)),
        ]
    return found


def always(arm: Arm) -> Choose:
    """Route the whole of every task to one arm."""
    return lambda task: ((task, arm),)


def _strongest(ranked: Sequence[Arm], trials: Iterable[Trial]) -> Arm:
    """The arm that is right most often; without trials the dearest."""
    means = _mean((trial.arm, float(trial.is_right)) for trial in trials)
    return max(ranked, key=lambda arm: (means.get(arm, 0.0), ranked.index(arm)))


def _at_random(arms: Sequence[Arm], seed: int) -> Choose:
    """Decides by the text, so that a task is routed as it was planned."""

    def choose(task: str) -> tuple[tuple[str, Arm], ...]:
        digest = hashlib.sha256(f"{seed}/{task}".encode()).digest()
        return ((task, random.Random(digest).choice(arms)),)

    return choose


def table_by_kind(arms: Sequence[Arm], trials: Iterable[Trial], kinds: Mapping[str, str]) -> Choose:
    """For each kind the arm of the largest mean reward; an arm without trials counts as 0."""
    means = _mean(((trial.kind, trial.arm), trial.reward) for trial in trials)

    def choose(task: str) -> tuple[tuple[str, Arm], ...]:
        return ((task, max(arms, key=lambda arm: means.get((kinds.get(task, ""), arm), 0.0))),)

    return choose


def _mean(values: Iterable[tuple[object, float]]) -> dict[object, float]:
    """Mean by key, drawn to 0 where there are few values."""
    sums: defaultdict[object, float] = defaultdict(float)
    counts: defaultdict[object, float] = defaultdict(lambda: _PRIOR_TRIALS)
    for key, value in values:
        sums[key] += value
        counts[key] += 1.0
    return {key: total / counts[key] for key, total in sums.items()}


def halves(task: str) -> tuple[str, str]:
    """Make the last line the second step; of a task of one line, both are the whole."""
    first, _, second = task.strip().rpartition("\n")
    return first or second, second


def _always_split(bandit: Bandit) -> Choose:
    def choose(task: str) -> tuple[tuple[str, Arm], ...]:
        first, second = halves(task)
        return ((first, bandit.choose(first)), (second, bandit.choose(second)))

    return choose
