"""`powerinfer orchestrate` and its parts, with the embedded model as policy and worker."""

import json
from pathlib import Path

import click
import pytest

from command_line import assert_error, invoke
from powerinfer.cli.orchestra import ServedOrchestra
from powerinfer.orchestra.orchestra import Orchestra
from powerinfer.orchestra.policy import ModelPolicy
from powerinfer.orchestra.pool import PoolError
from powerinfer.orchestra.workers.worker import WorkerError
from powerinfer.serve.context import ServerContext


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
        (("-p", "x", "--allow", "fly"), "--allow 'fly': primitives are "),
        (("-p", "x", "--document", "none.csv"), "--document none.csv: no such file"),
        (("-p", "x", "--api-host", "http://a.org/b"), "--api-host 'http://a.org/b': want a host"),
        (("-p", "x", "--database", "none.db"), "--database none.db: no such file"),
        (("-p", "x", "--trajectory", "/proc/none"), "/proc/none: cannot write"),
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


def test_ctrl_c_frees_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    def run(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Orchestra, "run", run)
    monkeypatch.setattr(Orchestra, "close", lambda orchestra: closed.append(orchestra))
    result = invoke("orchestrate", "-p", "x")
    assert result.exit_code == 130
    assert len(closed) == 1


def test_a_policy_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decide(*_: object) -> None:
        raise WorkerError("it died")

    monkeypatch.setattr(ModelPolicy, "decide", decide)
    result = invoke("orchestrate", "-p", "x", "--json")
    assert_error(result, "the policy failed: it died")
    row = json.loads(result.stdout)
    assert (row["answer"], row["error"]) == ("", "the policy failed: it died")
    assert "other_than_one_answer_at_the_end" in row["violations"]


class TestServe:
    POOL = '[[worker]]\nname = "a"\nmodel = ""\nprimitives = ["reason"]\n'

    def read(self, tmp_path: Path, text: str = POOL, **flags: object) -> ServedOrchestra:
        path = tmp_path / "pool.toml"
        path.write_text(text)
        nothing = {"documents": (), "databases": (), "api_hosts": (), "let_data_leave": False}
        allowed = {"allowed": (), "allow_over_http": False}
        return ServedOrchestra.read({"pool": path, **nothing, **allowed, **flags}, {})

    def test_it_joins_a_server(self, tmp_path: Path) -> None:
        orchestra = self.read(tmp_path, allowed=("reason",), allow_over_http=True)
        assert [each.names for each in orchestra.sources] == [("a",)]
        assert orchestra.permissions.allowed == {"reason"}
        context = ServerContext(sources=orchestra.sources)
        orchestra.join(context)
        assert list(context.answerers) == ["orchestra"]
        context.close()

    def test_code_needs_a_second_flag(self, tmp_path: Path) -> None:
        with pytest.raises(click.UsageError, match="give --allow-over-http too"):
            self.read(tmp_path, allowed=("reason",))

    def test_a_worker_has_another_name(self, tmp_path: Path) -> None:
        with pytest.raises(PoolError, match="is the name of all workers together"):
            self.read(tmp_path, self.POOL.replace('"a"', '"orchestra"'))

    def test_mistakes(self, tmp_path: Path) -> None:
        assert_error(invoke("serve", "--pool", "none.toml"), "none.toml: No such file")
