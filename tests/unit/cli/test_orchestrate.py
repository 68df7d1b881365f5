"""`powerinfer orchestrate` and its parts, with the embedded model as policy and worker."""

import json
from pathlib import Path

import pytest

from command_line import assert_error, invoke


def test_a_task(tmp_path: Path) -> None:
    """The embedded model decides at random, but by the rules."""
    path = tmp_path / "runs.jsonl"
    arguments = ("-p", "Once upon a time", "--trajectory", path, "--temp", "1", "--seed", "2")
    result = invoke("orchestrate", *arguments)
    assert result.exit_code == 0, result.output
    row = json.loads(path.read_text())
    assert row["violations"] == []
    assert row["question"] == "Once upon a time"
    assert row["conversations"][-1]["value"].endswith("</final_answer>")
    assert result.stdout.strip() in row["conversations"][-1]["value"]
    assert "estimates of other ways: cheapest" in result.stderr
    assert row["ledger"]["tokens"] == sum(each["tokens"] for each in row["ledger"]["steps"])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "give the task with -p 'TASK' or with -f FILE"),
        (("-p", " "), "the task is empty"),
        (("-p", "x", "-f", "-"), "give the task with -p 'TASK' or with -f FILE"),
        (("-p", "x", "--pool", "none.toml"), "none.toml: No such file"),
        (("-p", "x", "--pool", "a", "-m", "b"), "give either --pool or -m"),
        (("-p", "x", "--allow", "fly"), "--allow 'fly': primitives are direct_answer"),
        (("-p", "x", "--document", "none.csv"), "--document none.csv: no such file"),
        (("-p", "x", "--database", "none.db"), "--database none.db: no such file"),
        (("-p", "x", "-m", "none.gguf"), "none.gguf"),
        (("pool", "--pool", "none.toml"), "none.toml: No such file"),
        (("pool", "--pool", "a", "-m", "b"), "give either --pool or -m"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], problem: str) -> None:
    assert_error(invoke("orchestrate", *arguments), problem)


def test_a_missing_key_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLOUD_KEY", raising=False)
    path = tmp_path / "pool.toml"
    path.write_text(
        '[[worker]]\nname = "a"\nmodel = ""\nprimitives = ["reason"]\n'
        '[[worker]]\nname = "b"\nmodel = "gpt"\nbase_url = "http://localhost:1/v1"\n'
        'api_key_env = "CLOUD_KEY"\nprimitives = ["reason"]\n'
    )
    assert_error(invoke("orchestrate", "-p", "x", "--pool", path), "CLOUD_KEY holds no key")


def test_the_default_pool() -> None:
    result = invoke("orchestrate", "pool")
    assert result.exit_code == 0
    assert "model (policy)  embedded model  direct_answer" in result.stdout


def test_a_pool_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text('[[worker]]\nname = "a"\nmodel = ""\nprimitives = ["reason"]\n')
    result = invoke("orchestrate", "pool", "--pool", path, "--measure", "--json")
    assert result.exit_code == 0, result.output
    (worker,) = json.loads(result.stdout)["workers"]
    assert worker["cost"]["seconds_per_token"] > 0
    assert worker["cost"]["resident_bytes"] > 1e6
    assert "cost = { seconds_per_prompt_token = " in path.read_text()
