"""Runs with real primitives and scripted models: attachments, judges, shared runs."""

import asyncio
from collections.abc import Iterator

import pytest

from orchestra_cases import PASS, FakeWorker, ScriptedPolicy, plan, route
from powerinfer.orchestra import primitives
from powerinfer.orchestra.actions import Action, FinalAnswer
from powerinfer.orchestra.evaluation.baselines import Baseline, always
from powerinfer.orchestra.evaluation.episodes import Run, real_run
from powerinfer.orchestra.evaluation.evaluate import Comparison, compare, evaluate
from powerinfer.orchestra.evaluation.generating import make_tasks
from powerinfer.orchestra.evaluation.task import Attachments, Task
from powerinfer.orchestra.evaluation.truth import Arm
from powerinfer.orchestra.policy import ModelPolicy
from powerinfer.orchestra.pool import Cost, Pool, WorkerEntry
from powerinfer.orchestra.runtime import Players
from powerinfer.orchestra.workers.worker import Question, WorkerError

POOL = Pool(
    workers=(
        WorkerEntry(
            name="model",
            model="m",
            primitives=("direct_answer",),
            cost=Cost(price_per_million_tokens=1e6),
        ),
        WorkerEntry(name="tools", primitives=("read_document", "database_query")),
    ),
    policy="model",
)
ARM = Arm("model", "direct_answer")
TASK = Task(
    id="a",
    question="What does note.txt say?",
    gold="hello",
    attachments=Attachments(
        documents={"note.txt": "hello"},
        databases={"store.db": "CREATE TABLE t(x); INSERT INTO t VALUES (42);"},
    ),
)


async def _hello(question: Question) -> str:
    return "The answer is Hello."


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker(_hello)


@pytest.fixture
def run(worker: FakeWorker) -> Iterator[Run]:
    players = Players(
        pool=POOL,
        policy=ScriptedPolicy([]),
        workers={"model": worker},
        primitives=primitives.load(),
    )
    with asyncio.Runner() as runner:
        yield real_run(players, runner)


def test_an_answer_is_judged_and_counted(run: Run) -> None:
    episode, _ = run(TASK, "direct", Baseline("direct", always(ARM)))
    assert episode.is_right
    assert episode.is_valid
    assert (episode.routes, episode.tokens, episode.prompt_tokens) == (1, 1, 5)
    assert episode.price == pytest.approx(1.0)
    assert episode.seconds > 0
    assert episode.best is None


def test_attachments_can_be_read_and_queried(run: Run) -> None:
    actions: list[Action | Exception] = [
        plan((), ()),
        route(1, "tools", "read_document", query="note.txt"),
        route(2, "tools", "database_query", query="store.db: SELECT x FROM t"),
        PASS,
        FinalAnswer("hello"),
    ]
    episode, outcome = run(TASK, "policy", ScriptedPolicy(actions))
    assert episode.is_valid, episode.error
    assert outcome.state.observations[1].text == "hello"
    assert "42" in outcome.state.observations[2].text


def test_a_policy_that_fails_is_an_episode(run: Run) -> None:
    policy = ScriptedPolicy([WorkerError("it is asleep")])
    episode, _ = run(TASK, "policy", policy)
    assert not episode.is_valid
    assert not episode.is_right
    assert "asleep" in episode.error


def test_a_model_that_decides_is_told_of_attachments(run: Run, worker: FakeWorker) -> None:
    policy = ModelPolicy(worker, POOL, primitives.load())
    run(TASK, "policy", policy)
    read = "\n".join(each["content"] for each in worker.questions[0].messages)
    assert "Documents: note.txt" in read
    assert "Databases: store.db" in read


def test_baselines_that_choose_alike_share_runs(run: Run, worker: FakeWorker) -> None:
    tasks = make_tasks(3, 0, held_out=True)
    same = [(name, Baseline(name, always(ARM))) for name in ("one", "two")]
    episodes = list(evaluate(run, tasks, same))
    assert [each.policy for each in episodes] == ["one"] * 3 + ["two"] * 3
    assert len(worker.questions) == 3


def test_learning_has_its_own_tasks_and_scale(run: Run, worker: FakeWorker) -> None:
    comparison = Comparison(tasks=(TASK,), to_learn=make_tasks(2, 0, held_out=False))
    rows, objective = compare(comparison, run, POOL, [ARM], [])
    assert len(worker.questions) == 2 + 1 + 2  # to learn, TASK, TASK split
    assert {each.policy for each in rows} >= {"bandit", "random"}
    assert objective.cost_weight == 0.1
