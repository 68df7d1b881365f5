"""Names of tasks on the command line."""

from pathlib import Path

import pytest

from powerinfer.errors import TaskError
from powerinfer.orchestra.evaluation.generating import make_tasks
from powerinfer.orchestra.evaluation.sources import find_tasks
from powerinfer.orchestra.evaluation.task_files import write_tasks


def test_generated_tasks_differ_from_those_to_learn() -> None:
    assert find_tasks("generated", 5, 3) == make_tasks(5, 3, held_out=True)
    assert find_tasks("generated: dates, algebra", 2, 3, to_learn=True) == make_tasks(
        2, 3, held_out=False, only=["dates", "algebra"]
    )


def test_files_are_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    tasks = make_tasks(5, 3, held_out=True)
    write_tasks(path, tasks)
    assert find_tasks(str(path), 2, 0) == tasks[:2]
    with pytest.raises(TaskError, match="not learned from"):
        find_tasks(str(path), 2, 0, to_learn=True)


def test_reasoning_gym_needs_names() -> None:
    with pytest.raises(TaskError, match="name a data set"):
        find_tasks("reasoning-gym:", 2, 0)
