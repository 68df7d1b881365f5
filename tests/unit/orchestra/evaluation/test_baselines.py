"""Baselines: what they learn from a ledger, and how they compare in a simulated pool."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from powerinfer.orchestra.evaluation.bandit import Bandit, Trial
from powerinfer.orchestra.evaluation.baselines import FIXED, Baseline, baselines, table_by_kind
from powerinfer.orchestra.evaluation.episodes import simulated_run
from powerinfer.orchestra.evaluation.evaluate import (
    Comparison,
    compare,
    evaluate,
    learning_tasks,
)
from powerinfer.orchestra.evaluation.features import features
from powerinfer.orchestra.evaluation.generating import kinds, make_tasks
from powerinfer.orchestra.evaluation.report import Row
from powerinfer.orchestra.evaluation.simulating import simulated_workers
from powerinfer.orchestra.evaluation.truth import Arm, simulate_pool

A, B = Arm("a", "answer"), Arm("b", "answer")


def _trials(count: int) -> list[Trial]:
    """A is good at sums, B at names."""
    asked = [("sum", "What is {} + 4?", A), ("name", "Who is the mayor of town {}?", B)]
    return [
        Trial(question.format(number), kind, arm, arm == good, 0.9 * (arm == good))
        for number in range(count)
        for kind, question, good in asked
        for arm in (A, B)
    ]


def test_the_bandit_learns_from_texts_alone() -> None:
    bandit = Bandit.learned((A, B), _trials(5))
    assert bandit.choose("What is 900 + 1?") == A
    assert bandit.choose("Who is the mayor of Ghent?") == B


def test_the_bandit_explores_with_a_seed() -> None:
    def chosen(seed: int) -> list[Arm]:
        bandit = Bandit((A, B), seed=seed)
        return [bandit.choose("What is 1 + 1?") for _ in range(20)]

    assert set(chosen(1)) == {A, B}
    assert chosen(1) == chosen(1)
    assert chosen(1) != chosen(2)


def test_exploring_settles_on_the_better_arm() -> None:
    bandit = Bandit((A, B), seed=0)
    question = "What is 1 + 1?"
    chosen = []
    for _ in range(60):
        chosen.append(bandit.choose(question))
        bandit.learn(question, chosen[-1], 1.0 if chosen[-1] == A else 0.2)
    assert chosen[-20:].count(A) >= 18


def test_features_have_unit_length_and_ignore_which_number() -> None:
    found = features("Add 12 and 34.")
    assert np.linalg.norm(found) == pytest.approx(1.0)
    assert np.array_equal(found, features("add 56 AND 78."))
    assert not np.array_equal(found, features("add 5678 and 78."))
    assert np.linalg.norm(features("")) == pytest.approx(1.0)


def test_the_table_takes_the_best_arm_of_each_kind() -> None:
    choose = table_by_kind((A, B), _trials(2), {"q1": "sum", "q2": "name"})
    assert [choose(each)[0][1] for each in ("q1", "q2")] == [A, B]
    assert choose("unknown")[0][1] == A


def _rows(seed: int) -> dict[str, Row]:
    pool = simulate_pool(seed)
    only = (*kinds(), "two_steps")
    with asyncio.Runner() as runner:
        run = simulated_run(pool, runner)
        comparison = Comparison(
            tasks=make_tasks(20, seed, held_out=True, only=only),
            to_learn=make_tasks(30, seed, held_out=False, only=only),
            objective=pool.objective,
            seed=seed,
        )
        rows, _ = compare(comparison, run, simulated_workers(pool), pool.arms, [])
    return {each.policy: each for each in rows}


def test_no_choice_beats_the_oracle() -> None:
    pool = simulate_pool(2)
    tasks = make_tasks(9, 2, held_out=True)
    found = baselines(simulated_workers(pool), pool.arms, _trials_of(pool.arms), {}, 0)
    with asyncio.Runner() as runner:
        policies = [(each.name, each) for each in found]
        episodes = list(evaluate(simulated_run(pool, runner), tasks, policies))
    assert len(episodes) == 9 * (11 + 6)
    for episode in episodes:
        # The oracle's reward is the most that any choice is worth.
        assert episode.expected is not None
        assert episode.best is not None
        assert episode.expected <= episode.best + 1e-9
        assert episode.is_valid


def _trials_of(arms: Sequence[Arm]) -> list[Trial]:
    """An arm each is good at one question."""
    return [Trial(f"What is {arm}?", "", arm, is_right=True, reward=0.9) for arm in arms]


def test_baselines_in_a_simulated_pool() -> None:
    rows = _rows(1)
    regrets = {name: each.regret.value for name, each in rows.items() if each.regret is not None}
    fixed = [regret for name, regret in regrets.items() if name.startswith(FIXED)]
    assert len(fixed) == 11
    assert regrets["table by kind (told the kind)"] < min(fixed)
    assert regrets["bandit"] < regrets["random"]
    assert regrets["cheapest (small/direct_answer)"] > regrets["strongest (large/reason)"]
    split, table = (
        rows[name].accuracy_by_kind
        for name in ("always split (by the bandit)", "table by kind (told the kind)")
    )
    assert split["two_steps"] > table["two_steps"]
    assert rows["always split (by the bandit)"].routes == 2.0


def test_second_steps_are_learned_with_the_first_result() -> None:
    (task,) = make_tasks(1, 3, held_out=False, only=["two_steps"])
    whole, first, second = learning_tasks([task])
    assert whole == task
    assert (first.question, first.gold) == (task.parts[0].question, task.parts[0].gold)
    assert second.question.startswith(f"The result is {first.gold}.\n")
    assert (second.gold, second.kind) == (task.gold, "arithmetic")
    assert len({each.id for each in (whole, first, second)}) == 3


def test_what_is_not_offered_is_not_answered() -> None:
    pool = simulate_pool(1)
    (task,) = make_tasks(1, 3, held_out=False)
    with asyncio.Runner() as runner:
        choose = Baseline("absent", lambda text: ((text, Arm("nobody", "answer")),))
        episode, outcome = simulated_run(pool, runner)(task, "absent", choose)
    assert outcome.answer == "no answer"
    assert episode.is_valid
    assert (episode.routes, episode.is_right) == (0, False)


def test_an_objective_is_measured_from_costs() -> None:
    pool = simulate_pool(1)
    tasks = make_tasks(3, 3, held_out=False)
    comparison = Comparison(tasks=tasks, cost_weight=0.3, second_price=2.0)
    with asyncio.Runner() as runner:
        rows, objective = compare(
            comparison, simulated_run(pool, runner), simulated_workers(pool), pool.arms[:2], []
        )
    costs = [2.0 * each.seconds.value + each.price.value for each in rows]
    assert objective.scale.low**2 <= max(costs)
    assert objective.scale.high**2 >= min(costs)
    assert (objective.cost_weight, objective.second_price) == (0.3, 2.0)
    assert [each.policy for each in rows][-1] == "random"
