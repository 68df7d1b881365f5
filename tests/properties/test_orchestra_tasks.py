"""Generated tasks: answers pass their checkers, seeds repeat, wordings held out stay so."""

import re
import sqlite3
import string
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.errors import TaskError
from powerinfer.orchestra.evaluation.generating import kinds, make_tasks
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.task_files import read_tasks, write_tasks
from powerinfer.orchestra.evaluation.tasks import two_steps
from powerinfer.orchestra.evaluation.wording import Form, TaskKind

SEEDS = st.integers(0, 2**40)
KINDS = tuple(kinds())


@given(seed=SEEDS, held_out=st.booleans())
def test_right_answers_pass_and_wrong_ones_do_not(seed: int, *, held_out: bool) -> None:
    tasks = make_tasks(2 * len(KINDS), seed, held_out=held_out)
    golds = {task.gold for task in tasks}
    for task in tasks:
        assert task.is_right(task.gold)
        assert task.is_right(f"The answer is {task.gold}.")
        assert not task.is_right("")
        assert not task.is_right(f"{task.gold}1")
        assert not any(task.is_right(other) for other in golds - {task.gold})


@given(seed=SEEDS, held_out=st.booleans())
def test_seeds_repeat(seed: int, *, held_out: bool) -> None:
    tasks = make_tasks(20, seed, held_out=held_out)
    assert make_tasks(9, seed, held_out=held_out) == tasks[:9]
    assert len({task.id for task in tasks}) == 20
    assert make_tasks(20, seed + 1, held_out=held_out) != tasks


@given(seed=SEEDS)
def test_kinds_come_equally_often_and_stay_hidden(seed: int) -> None:
    tasks = make_tasks(2 * len(KINDS), seed, held_out=True)
    assert Counter(task.kind for task in tasks) == dict.fromkeys(KINDS, 2)
    for task in tasks:
        assert task.kind not in task.id


def _wordings(*, held_out: bool) -> Iterator[str]:
    """Every wording of every kind as a pattern of the questions that it makes."""
    for kind in kinds().values():
        if isinstance(kind, TaskKind):
            for form in kind.forms:
                yield from map(_pattern, form.held_out if held_out else form.wordings)
    yield from map(_pattern, two_steps.HELD_OUT if held_out else two_steps.WORDINGS)


def _pattern(wording: str) -> str:
    return "".join(
        re.escape(text) + ("" if name is None else ".*")
        for text, name, _, _ in string.Formatter().parse(wording)
    )


@given(seed=SEEDS)
def test_held_out_wordings_are_never_seen_in_training(seed: int) -> None:
    held_out, trained = (list(_wordings(held_out=each)) for each in (True, False))
    for in_training in (True, False):
        unseen = held_out if in_training else trained
        for task in make_tasks(2 * len(KINDS), seed, held_out=not in_training):
            for text in (task.question, *(each.question for each in task.parts)):
                assert not any(re.fullmatch(each, text, re.DOTALL) for each in unseen), text


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_several_wordings_and_some_held_out(name: str) -> None:
    kind = kinds()[name]
    forms = kind.forms if isinstance(kind, TaskKind) else ()
    for form in forms:
        assert isinstance(form, Form)
        assert len(form.wordings) >= 2
        assert form.held_out
        assert not set(form.wordings) & set(form.held_out)


@given(seed=SEEDS)
def test_a_second_step_uses_the_first(seed: int) -> None:
    for task in make_tasks(3, seed, held_out=True, only=["two_steps"]):
        first, second = task.parts
        factor, less = map(int, re.findall(r"\d+", second.question))
        assert int(task.gold) == int(first.gold) * factor - less
        assert first.question in task.question
        assert first.kind in KINDS


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(TaskError, match="'chess' is not supported"):
        make_tasks(1, 0, held_out=False, only=["chess"])


@given(seed=SEEDS)
def test_databases_hold_the_answer(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    (task,) = make_tasks(1, seed, held_out=False, only=["database"])
    folder = tmp_path_factory.mktemp("attached") / "task"
    documents, (path,) = task.attachments.write(folder)
    assert documents == ()
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT item, city, pieces, price FROM goods").fetchall()
    if task.gold.isdigit():
        city = next(each[1] for each in rows if each[1] in task.question)
        assert sum(each[2] for each in rows if each[1] == city) == int(task.gold)
    else:
        assert max(rows, key=lambda each: each[3])[0] == task.gold


@given(seed=SEEDS)
def test_documents_hold_the_answer(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    (task,) = make_tasks(1, seed, held_out=False, only=["document_lookup"])
    (path,), databases = task.attachments.write(tmp_path_factory.mktemp("attached") / "task")
    assert databases == ()
    assert task.gold in path.read_text(encoding="utf-8")


@given(seed=SEEDS)
def test_files_keep_tasks(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    tasks = make_tasks(len(KINDS), seed, held_out=True)
    path: Path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(path, tasks)
    assert read_tasks(path) == tasks


def test_judged_tasks_are_not_written(tmp_path: Path) -> None:
    task = Task(id="a", question="q", gold="g", score=lambda _: 1.0)
    with pytest.raises(TaskError, match="judged by a function"):
        write_tasks(tmp_path / "tasks.jsonl", [task])
