"""Simulated pools in the real runtime: workers tell the truth that the pool has."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from orchestra_cases import RandomPolicy
from powerinfer.orchestra.evaluation.baselines import Baseline, always
from powerinfer.orchestra.evaluation.episodes import Episode, Run, simulated_run
from powerinfer.orchestra.evaluation.generating import kinds, make_tasks
from powerinfer.orchestra.evaluation.simulating import Simulation, simulated_workers
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import Arm, SimulatedPool, Skill, simulate_pool
from powerinfer.orchestra.primitives.primitive import PrimitiveError

POOL = simulate_pool(5)
SMALL, LARGE = Arm("small", "direct_answer"), Arm("large", "reason")
SQL, PYTHON = Arm("tools", "database_query"), Arm("tools", "execute_python")


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with asyncio.Runner() as runner:
        yield simulated_run(POOL, runner)


def _two_steps(index: int = 0) -> Task:
    return make_tasks(index + 1, 7, held_out=True, only=["two_steps"])[index]


def _certain(arm: Arm, kind: str, *, right: float, tells: float = 1.0) -> SimulatedPool:
    """The pool with one skill replaced."""
    skills = {each: dict(by_kind) for each, by_kind in POOL.skills.items()}
    skills[arm][kind] = Skill(right=right, tells=tells, seconds=1.0, price=0.0)
    return SimulatedPool(POOL.seed, skills, POOL.objective)


@pytest.mark.parametrize("arm", [SMALL, LARGE, PYTHON])
def test_an_arm_is_right_as_often_as_the_truth_says(run: Run, arm: Arm) -> None:
    tasks = make_tasks(150, 1, held_out=True, only=["dates"])
    episodes = [run(task, "fixed", Baseline("fixed", always(arm)))[0] for task in tasks]
    skill = POOL.skills[arm]["dates"]
    for task, episode in zip(tasks, episodes, strict=True):
        assert episode.is_right == (POOL.difficulty(task) < skill.right)
        assert (episode.seconds, episode.price) == (skill.seconds, skill.price)
        assert episode.tokens == skill.tokens
    rewards = [each.reward(POOL.objective) for each in episodes]
    # Three standard errors.
    assert sum(rewards) / 150 == pytest.approx(_known(episodes[0].expected), abs=3 * 0.5 / 150**0.5)


def _known(value: float | None) -> float:
    assert value is not None
    return value


def test_steps_are_known_by_their_texts() -> None:
    for task in make_tasks(12, 7, held_out=True, only=["two_steps"]):
        simulation = Simulation(POOL, task)
        assert simulation.nearest(task.question) == 0
        assert [simulation.nearest(each.question) for each in task.parts] == [1, 2]
        assert simulation.nearest("anything else") == 0


def test_the_second_step_needs_the_first() -> None:
    task = _two_steps()
    first, second = task.parts
    simulation = Simulation(_certain(PYTHON, "arithmetic", right=1.0), task)
    assert simulation.ask(PYTHON, second.question, {"1": first.gold}) == task.gold
    assert not task.is_right(simulation.ask(PYTHON, second.question, {"1": "something else"}))
    assert not task.is_right(simulation.ask(PYTHON, second.question, {}))
    assert len(simulation.calls) == 3


def test_a_missing_input_costs_nothing() -> None:
    task = _two_steps()
    simulation = Simulation(_certain(SQL, task.parts[0].kind, right=0.0), task)
    with pytest.raises(PrimitiveError) as caught:
        simulation.ask(SQL, task.parts[0].question, {})
    with pytest.raises(PrimitiveError, match="input is missing"):
        simulation.ask(PYTHON, task.parts[1].question, {"1": str(caught.value)})
    assert len(simulation.calls) == 1


def test_wrong_answers_are_the_same_of_all() -> None:
    task = make_tasks(1, 7, held_out=True, only=["dates"])[0]
    answers = {
        Simulation(_certain(arm, "dates", right=0.0, tells=0.0), task).ask(arm, task.question, {})
        for arm in POOL.arms
    }
    assert len(answers) == 1
    assert not task.is_right(answers.pop())


def test_a_split_task_is_right_if_both_steps_are(run: Run) -> None:
    for index in range(12):
        task = _two_steps(index)
        first, second = task.parts
        steps = ((first.question, LARGE), (second.question, PYTHON))
        policy = Baseline("split", lambda _, steps=steps: steps)  # type: ignore[misc]
        episode, outcome = run(task, "split", policy)
        right = [
            POOL.skills[arm][part.kind].right
            for (_, arm), part in zip(steps, task.parts, strict=True)
        ]
        assert episode.is_right == (POOL.difficulty(task) < min(right))
        assert outcome.state.subtasks[2].depends_on == (1,)
        assert (episode.routes, episode.escalations) == (2, 0)


def test_random_policies_keep_the_rules(run: Run) -> None:
    for seed in range(9):
        task = make_tasks(9, seed, held_out=True)[seed % 9]
        episode, _ = run(task, "random", RandomPolicy(random.Random(seed)))
        assert episode.is_valid
        assert episode.expected is None
        assert _known(episode.best) > 0.5


def test_the_pool_is_described_as_a_file_would() -> None:
    pool = simulated_workers(POOL)
    assert [each.name for each in pool.workers] == ["small", "medium", "large", "tools"]
    assert pool["tools"].is_tool
    assert pool["large"].cost.rank > pool["medium"].cost.rank > pool["small"].cost.rank
    arms = {Arm(each.name, primitive) for each in pool.workers for primitive in each.primitives}
    assert arms == set(POOL.arms)


def test_only_valid_runs_are_rewarded() -> None:
    episode = Episode(policy="a", task="t", kind="k", answer="x", is_right=True, seconds=0.0)
    assert episode.reward(POOL.objective) > 0.8
    assert replace(episode, protocol_errors=1).reward(POOL.objective) == 0.0
    assert replace(episode, error="it failed").reward(POOL.objective) == 0.0


def test_the_pool_knows_every_kind_of_task() -> None:
    for by_kind in POOL.skills.values():
        assert set(by_kind) == set(kinds())
