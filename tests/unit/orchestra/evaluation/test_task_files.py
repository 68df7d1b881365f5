"""Task files: what may be left out, and one line for each fault."""

from pathlib import Path

import pytest

from powerinfer.errors import TaskError
from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.task_files import read_tasks


def _written(folder: Path, text: str) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_question_and_gold_suffice(tmp_path: Path) -> None:
    path = _written(tmp_path, '{"question": "2 + 2?", "gold": "4"}\n\n')
    (task,) = read_tasks(path)
    assert (task.id, task.check, task.kind) == ("tasks.jsonl:1", Check.NORMALIZED, "")
    assert task.is_right("4")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("", "has no tasks"),
        ("{", "1: .*JSON"),
        ("[]", "1: the file is not an object"),
        ('{"question": "q"}', "1: the file has no field 'gold'"),
        ('{"question": "", "gold": "4"}', "question is empty"),
        ('{"question": "q", "gold": 4}', "gold is not a text"),
        ('{"question": "q", "gold": "4", "colour": 1}', "colour is unknown: use question"),
        ('{"question": "q", "gold": "4", "check": "vague"}', "check is 'vague': use exact"),
        ('{"question": "q", "gold": "4", "documents": {"../x": ""}}', "no plain file name"),
        ('{"question": "q", "gold": "4", "parts": [{}]}', "has no field 'question'"),
        (
            '{"question": "q", "gold": "4", "parts": [{"question":"a","gold":"b","kind":"c"}]}',
            "two steps, or none",
        ),
    ],
)
def test_faults_are_told_in_one_line(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(TaskError, match=problem) as caught:
        read_tasks(_written(tmp_path, line))
    assert "\n" not in str(caught.value)


def test_ids_differ(tmp_path: Path) -> None:
    line = '{"question": "q", "gold": "4", "id": "a"}\n'
    with pytest.raises(TaskError, match="two tasks have the id 'a'"):
        read_tasks(_written(tmp_path, line + line))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read"):
        read_tasks(tmp_path / "nothing.jsonl")
