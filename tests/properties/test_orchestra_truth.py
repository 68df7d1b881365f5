"""Simulated pools: their oracle is exact, and no choice beats it."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.orchestra.evaluation.generating import make_tasks
from powerinfer.orchestra.evaluation.reward import CostScale, Objective
from powerinfer.orchestra.evaluation.task import Part, Task
from powerinfer.orchestra.evaluation.truth import (
    Arm,
    SimulatedPool,
    Skill,
    Split,
    Whole,
    simulate_pool,
)

SHARES = st.sampled_from([0.0, 0.1, 0.35, 0.6, 0.85, 1.0])
SKILLS = st.builds(
    Skill,
    right=SHARES,
    tells=SHARES,
    seconds=st.sampled_from([0.0, 0.1, 0.5, 2.0]),
    price=st.just(0.0),
)
KINDS = ("whole", "first", "second")
TASK = Task(
    id="a", question="q", gold="g", kind="whole",
    parts=(Part("q1", "g1", "first"), Part("q2", "g", "second")),
)  # fmt: skip
ONE_STEP = Task(id="a", question="q", gold="g", kind="whole")
OBJECTIVE = Objective(scale=CostScale(0.0, 2.0), cost_weight=0.4)
POOLS = st.lists(st.tuples(SKILLS, SKILLS, SKILLS), min_size=1, max_size=3).map(
    lambda rows: SimulatedPool(
        0,
        {
            Arm(f"w{at}", "answer"): dict(zip(KINDS, row, strict=True))
            for at, row in enumerate(rows)
        },
        OBJECTIVE,
    )
)
DIFFICULTIES = (np.arange(20) + 0.5) / 20
"""All probabilities are multiples of 1/20, so this grid is exact."""


def _tried_in_turn(pool: SimulatedPool, arms: Sequence[Arm], u: float) -> float:
    """Expected reward of a task of this difficulty: the next arm follows a reported failure."""
    share, cost = 1.0, 0.0
    for arm in arms:
        skill = pool.skills[arm]["whole"]
        cost += pool.cost(arm, "whole")
        if u < skill.right:
            return share * OBJECTIVE.of_right(cost)
        share *= skill.tells
    return 0.0


def _steps_in_turn(
    pool: SimulatedPool, firsts: Sequence[Arm], seconds: list[Arm], u: float
) -> float:
    """The same for a task in two steps: failed steps are done again by the next arm."""
    share, cost, number = 1.0, 0.0, 0
    rounds = 3
    for first in firsts:
        skill = pool.skills[first]["first"]
        cost += pool.cost(first, "first")
        if u < skill.right:
            break
        share *= skill.tells
        rounds -= 1
    else:
        return 0.0
    while rounds > 0 and number < len(seconds):
        second = seconds[number]
        cost += pool.cost(second, "second")
        if u < pool.skills[second]["second"].right:
            return share * OBJECTIVE.of_right(cost)
        share *= pool.skills[second]["second"].tells
        rounds, number = rounds - 1, number + 1
    return 0.0


@given(pool=POOLS)
def test_the_oracle_of_one_step_is_the_best_sequence(pool: SimulatedPool) -> None:
    values = [
        np.mean([_tried_in_turn(pool, arms, u) for u in DIFFICULTIES])
        for length in (1, 2, 3)
        for arms in product(pool.arms, repeat=length)
    ]
    assert pool.best(ONE_STEP) == pytest.approx(max(values), abs=1e-9)


@given(pool=POOLS)
def test_no_sequence_of_split_tasks_beats_the_oracle(pool: SimulatedPool) -> None:
    best = pool.best(TASK)
    for arms in product(pool.arms, repeat=4):
        value = np.mean([_steps_in_turn(pool, arms[:2], list(arms[2:]), u) for u in DIFFICULTIES])
        assert value <= best + 1e-9


@given(pool=POOLS)
def test_values_are_those_of_single_attempts(pool: SimulatedPool) -> None:
    for arm in pool.arms:
        expected = np.mean([_tried_in_turn(pool, [arm], u) for u in DIFFICULTIES])
        assert pool.value(TASK, Whole(arm)) == pytest.approx(expected)
    for first, second in product(pool.arms, repeat=2):
        expected = np.mean([_steps_in_turn(pool, [first], [second], u) for u in DIFFICULTIES])
        assert pool.value(TASK, Split(first, second)) == pytest.approx(expected)


@given(pool=POOLS)
def test_more_choice_is_never_worse(pool: SimulatedPool) -> None:
    single = max(pool.value(TASK, Whole(arm)) for arm in pool.arms)
    pairs = [pool.value(TASK, Split(*each)) for each in product(pool.arms, repeat=2)]
    best = [pool.best(TASK, rounds=rounds) for rounds in (1, 2, 3)]
    assert best == sorted(best)
    assert best[0] == pytest.approx(max(single, *pairs))
    assert pool.best(TASK, rounds=1, may_split=False) == pytest.approx(single)
    assert pool.best(TASK, may_split=False) <= best[2] + 1e-12


def test_splitting_a_task_of_one_step_pays_twice() -> None:
    pool = simulate_pool(3)
    (task,) = make_tasks(1, 0, held_out=True, only=["dates"])
    for arm in pool.arms:
        skill, cost = pool.skills[arm]["dates"], pool.cost(arm, "dates")
        expected = skill.right * pool.objective.of_right(2 * cost)
        assert pool.value(task, Split(arm, arm)) == pytest.approx(expected)


@given(seed=st.integers(0, 2**30))
def test_pools_repeat_and_depend_on_the_seed(seed: int) -> None:
    pool = simulate_pool.__wrapped__(seed)
    assert pool.skills == simulate_pool(seed).skills
    assert pool.skills != simulate_pool(seed + 1).skills
    (task,) = make_tasks(1, seed, held_out=True)
    assert 0.0 <= pool.difficulty(task) < 1.0
    assert pool.difficulty(task) == simulate_pool(seed).difficulty(task)
