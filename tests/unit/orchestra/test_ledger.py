"""What a run cost, what other ways would have, and the row that is kept of it."""

import asyncio
import json
from pathlib import Path

import pytest

from orchestra_cases import ANSWER, PASS, ScriptedPolicy, plan, players, pool, route
from powerinfer.orchestra.ledger import POLICY, Estimate, Ledger, Step
from powerinfer.orchestra.pool import Cost, Pool, PoolError, WorkerEntry
from powerinfer.orchestra.runtime import Outcome, run_task
from powerinfer.orchestra.trajectory import append_trajectory, trajectory

POOL = Pool(
    workers=(
        WorkerEntry(
            name="a",
            model="a",
            primitives=("answer",),
            cost=Cost(
                seconds_per_token=1, seconds_per_prompt_token=0.1, price_per_million_tokens=1e6
            ),
        ),
        WorkerEntry(
            name="b",
            model="b",
            primitives=("answer",),
            cost=Cost(seconds_per_call=5, price_per_million_tokens=3e6),
        ),
        WorkerEntry(name="tools", primitives=("read",)),
    ),
    policy="a",
)
OFFERS = {each.name: each.primitives for each in POOL.workers}
LEDGER = Ledger(
    (
        Step(worker="a", primitive=POLICY, prompt_tokens=10, tokens=2, seconds=9, price=2),
        Step(worker="b", primitive="answer", subtask=1, prompt_tokens=10, tokens=4, price=12),
        Step(worker="tools", primitive="read", subtask=2, seconds=7),
        Step(worker="a", primitive=POLICY, prompt_tokens=20, tokens=3, seconds=1, price=3),
    )
)


def test_sums() -> None:
    assert (LEDGER.seconds, LEDGER.price) == (17, 17)
    assert (LEDGER.prompt_tokens, LEDGER.tokens) == (40, 9)


def test_other_ways() -> None:
    # The policy's two actions take 3 and 5 s; the tool's 7 s were measured in this run.
    assert LEDGER.other_ways(POOL, OFFERS) == {
        "cheapest": Estimate(seconds=3 + 5 + 7 + 5, price=2 + 3 + 4),
        "strongest": Estimate(seconds=3 + 5 + 7 + 5, price=2 + 3 + 12),
        "direct": Estimate(seconds=1 + 3, price=3),
    }


def test_costs_that_nobody_knows() -> None:
    priced = POOL.with_costs({"b": Cost(price_per_million_tokens=3e6)})
    step = Step(worker="a", primitive="answer", subtask=1, tokens=4)
    ways = Ledger((step,)).other_ways(priced, OFFERS)
    assert ways == {
        "cheapest": Estimate(seconds=4, price=4),
        "strongest": Estimate(seconds=None, price=12),
    }
    assert Ledger().other_ways(POOL, OFFERS)["cheapest"] == Estimate(seconds=0, price=0)


def done() -> Outcome:
    script = (plan(()), route(1, query="<plan"), PASS, ANSWER)
    return asyncio.run(run_task("task", players(ScriptedPolicy(script))))


def test_a_row(tmp_path: Path) -> None:
    row = trajectory(done(), pool(), "system")
    assert [each["from"] for each in row["conversations"]] == [  # type: ignore[attr-defined]
        *("system", "human", "gpt", "tool", "gpt"),
    ]
    assert (row["n_plan_rounds"], row["n_subtasks"], row["teacher"]) == (1, 1, "tiny")
    assert (row["violations"], row["error"]) == ([], "")
    path = tmp_path / "runs.jsonl"
    append_trajectory(path, row)
    append_trajectory(path, row)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [row, row]
    with pytest.raises(PoolError, match="cannot write"):
        append_trajectory(tmp_path, row)
