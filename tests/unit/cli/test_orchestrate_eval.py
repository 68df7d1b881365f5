"""`powerinfer orchestrate eval` and `collect`."""

import json
from pathlib import Path

import pytest

from command_line import assert_error, invoke


def test_a_simulated_pool_as_a_table() -> None:
    arguments = ("--simulated", "1", "--tasks", "generated:dates", "--limit", "6", "--learn", "0")
    result = invoke("orchestrate", "eval", *arguments)
    assert result.exit_code == 0, result.output
    assert "regret" in result.stdout
    assert "cheapest (small/direct_answer)" in result.stdout
    assert "Best possible expected reward by routing: oracle 0." in result.stdout
    assert invoke("orchestrate", "eval", *arguments).stdout == result.stdout


def test_a_simulated_pool_as_json() -> None:
    arguments = ("--simulated", "1", "--tasks", "generated:dates", "--limit", "4", "--learn", "4")
    result = invoke("orchestrate", "eval", *arguments, "--cost-weight", "0.5", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    rows = {each["policy"]: each for each in report["policies"]}
    assert {"bandit", "random", "table by kind (told the kind)"} <= set(rows)
    assert report["objective"]["cost_weight"] == 0.5
    best = report["oracle"]["oracle"]["value"]
    for row in rows.values():
        assert row["tasks"] == 4
        assert row["regret"]["value"] >= -1e-9
        assert row["regret"]["value"] <= best


@pytest.mark.slow
@pytest.mark.measured
def test_a_model_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"question": "Once upon a time", "gold": "no"}\n')
    result = invoke("orchestrate", "eval", "--tasks", path, "--ablations", "--json")
    assert result.exit_code == 0, result.output
    rows = {each["policy"]: each for each in json.loads(result.stdout)["policies"]}
    assert rows["policy"]["protocol_errors"] == 0
    assert rows["direct with model/direct_answer"]["tokens"] > 0
    assert rows["policy"]["regret"] is None
    assert rows["policy without splitting"]["protocol_errors"] == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--pool", "a", "-m", "b"), "give one of --pool and -m"),
        (("--pool", "a", "--simulated", "1"), "give one of --pool and -m"),
        (("--tasks", "none.jsonl"), "none.jsonl: cannot be read"),
        (("--tasks", "generated:chess"), "kind of task 'chess' is not supported"),
        (("--tasks", "reasoning-gym:"), "name a data set of reasoning-gym"),
        (("--pool", "none.toml", "--limit", "1"), "none.toml: No such file"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], problem: str) -> None:
    assert_error(invoke("orchestrate", "eval", *arguments), problem)


def test_a_simulated_pool_knows_its_kinds_only(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"question": "e4?", "gold": "e5", "kind": "chess"}\n')
    result = invoke("orchestrate", "eval", "--simulated", "1", "--learn", "0", "--tasks", path)
    assert_error(result, "knows nothing of tasks of the kind 'chess'")


def test_trajectories_are_collected(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    arguments = ("--simulated", "1", "--limit", "3", "--tries", "1", "-o", path)
    result = invoke("orchestrate", "collect", *arguments)
    assert result.exit_code == 0, result.output
    count = len(path.read_text().splitlines())
    assert result.stdout == f"{count} new runs in {path}\n"
    again = invoke("orchestrate", "collect", *arguments, "--json")
    assert json.loads(again.stdout)["new"] == 0


def test_collecting_needs_one_pool(tmp_path: Path) -> None:
    arguments = ("--simulated", "1", "-m", "x", "-o", tmp_path / "runs.jsonl")
    assert_error(invoke("orchestrate", "collect", *arguments), "give one of --pool, -m and")
