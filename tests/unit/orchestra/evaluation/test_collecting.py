"""Collections of trajectories: complete, repeatable, resumable, with reasons."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from powerinfer.errors import TaskError
from powerinfer.orchestra.evaluation.collecting import collect
from powerinfer.orchestra.evaluation.generating import make_tasks
from powerinfer.orchestra.evaluation.stages import Stage, simulated_stage
from powerinfer.orchestra.evaluation.truth import simulate_pool

TASKS = make_tasks(12, 4, held_out=False, only=["dates", "two_steps", "json_value"])


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with simulated_stage(simulate_pool(4)) as opened:
        yield opened


def _rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _facts(rows: list[dict[str, object]]) -> list[object]:
    """All but measured seconds."""
    return [{name: each for name, each in row.items() if name != "ledger"} for row in rows]


def test_all_runs_are_kept_with_their_reasons(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    count = collect(stage, TASKS, path, tries=3, seed=1)
    rows = _rows(path)
    assert len(rows) == count >= 3 * len(TASKS)
    assert {each["task"] for each in rows} == {each.id for each in TASKS}
    golds = {each.id: each.gold for each in TASKS}
    for row in rows:
        assert row["violations"] == []
        assert row["error"] == ""
        assert row["gold_answer"] == golds[str(row["task"])]
        assert row["reason"] == ("" if row["is_right"] else "the answer is wrong")
    assert {row["is_right"] for row in rows} == {True, False}


def test_failures_are_repaired_by_others(stage: Stage, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    collect(stage, TASKS, path, tries=3, seed=1)
    repaired = [row for row in _rows(path) if row["n_plan_rounds"] != 1]
    assert repaired
    assert all('status="repair_needed"' in json.dumps(row).replace("\\", "") for row in repaired)
    assert any(row["is_right"] for row in repaired)


def test_a_search_repeats_and_continues(stage: Stage, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    count = collect(stage, TASKS[:4], whole, tries=2, seed=1)
    assert collect(stage, TASKS[:4], whole, tries=2, seed=1) == 0
    data = whole.read_bytes()
    # Stopped within a line.
    stopped.write_bytes(data[: data.index(b"\n") + 40])
    assert collect(stage, TASKS[:4], stopped, tries=2, seed=1) == count - 1
    assert _facts(_rows(stopped)) == _facts(_rows(whole))


@pytest.mark.parametrize("text", ["notes\n", "notes", "[]\n", '{"id": "b"}'])
def test_other_files_are_left_alone(stage: Stage, tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(TaskError, match=r"notes.txt:1: is no row of a collection"):
        collect(stage, TASKS, path, tries=1, seed=1)
    assert path.read_text() == text


def test_a_folder_must_exist(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be written"):
        collect(stage, TASKS, tmp_path / "none" / "runs.jsonl", tries=1, seed=1)
