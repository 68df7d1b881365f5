"""The runtime with the real primitives."""

import asyncio
from pathlib import Path

from orchestra_cases import ANSWER, PASS, FakeWorker, ScriptedPolicy, echo, plan, route
from powerinfer.orchestra import primitives
from powerinfer.orchestra.actions import Verify
from powerinfer.orchestra.pool import Pool, WorkerEntry, default_pool
from powerinfer.orchestra.primitives.primitive import Permissions
from powerinfer.orchestra.runtime import Outcome, Players, run_task


def run(tmp_path: Path, policy: ScriptedPolicy) -> Outcome:
    (tmp_path / "prices.json").write_text('{"apple": {"price": 3}}')
    pool = default_pool(None, primitives.load())
    cloud = WorkerEntry(
        name="cloud", model="x", base_url="https://example.org", primitives=("direct_answer",)
    )
    everyone = Players(
        pool=Pool(workers=(*pool.workers, cloud), policy="model"),
        policy=policy,
        workers={"model": FakeWorker(echo), "cloud": FakeWorker(echo)},
        primitives=primitives.load(),
        permissions=Permissions(documents=(tmp_path / "prices.json",)),
    )
    return asyncio.run(run_task("task", everyone))


def test_results_reach_what_depends_on_them(tmp_path: Path) -> None:
    script = (
        plan((), (1,), (2,)),
        route(1, "tools", "read_document", query="prices.json"),
        route(2, "tools", "extract_field", query="apple.price"),
        route(3, "model", "direct_answer", query="Double it."),
        PASS,
        ANSWER,
    )
    outcome = run(tmp_path, ScriptedPolicy(script))
    observations = outcome.state.observations
    assert observations[1].text == '{"apple": {"price": 3}}'
    assert observations[2].text == "3"
    assert observations[3].text == "re: Result of subtask 2:\n3\n\nTask: Double it."
    assert outcome.state.tainted == {1, 2, 3}


def test_what_was_read_does_not_leave(tmp_path: Path) -> None:
    script = (
        plan((), (1,)),
        route(1, "tools", "read_document", query="prices.json"),
        route(2, "cloud", "direct_answer"),
        Verify(1, (1,), "no"),
        plan((), number=2, first=3),
        route(3, "tools", "parse_structured", query="a: 1", number=2),
        Verify(2, (), "ok"),
        ANSWER,
    )
    policy = ScriptedPolicy(script)
    outcome = run(tmp_path, policy)
    assert outcome.answer == "done"
    assert "not allowed" in outcome.state.observations[2].text
    assert policy.offers[0]["cloud"] == ("direct_answer",)
    assert policy.offers[4]["cloud"] == ()
    # Nobody allowed these.
    assert not {"execute_python", "database_query", "call_api"} & set(policy.offers[0]["tools"])
