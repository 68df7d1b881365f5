"""Costs of workers, and writing them into a pool's file."""

import asyncio
import tomllib
from pathlib import Path

import pytest

from orchestra_cases import PRIMITIVES, FakeWorker, echo, pool
from powerinfer.orchestra.measuring import joules, measure_worker, with_costs, write_costs
from powerinfer.orchestra.pool import Cost, PoolError, read_pool

POOL = """# mine
[[worker]]
name = "tiny" # small
model = "x" # a = [1]
primitives = ["answer"]

[[ worker ]]
model = "y"
  cost = { seconds_per_token = 9, price_per_million_tokens = 2 } # old
primitives = ["answer"]
name = "big"
[commands]
name = ["grep"]
"""


def test_costs_are_written_in_place() -> None:
    costs = {"tiny": Cost(seconds_per_token=0.5), "big": Cost(price_per_million_tokens=3.0)}
    expected = POOL.replace(
        'name = "tiny" # small\n',
        'name = "tiny" # small\ncost = { seconds_per_token = 0.5 }\n',
    ).replace(
        "  cost = { seconds_per_token = 9, price_per_million_tokens = 2 } # old\n",
        "cost = { price_per_million_tokens = 3.0 }\n",
    )
    assert with_costs(POOL, costs) == expected
    assert with_costs(POOL, {}) == POOL
    # Once more changes nothing.
    assert with_costs(expected, costs) == expected


def test_a_name_at_the_end_of_the_file() -> None:
    text = '[[worker]]\nprimitives = ["answer"]\nname = "a"'
    written = with_costs(text, {"a": Cost(seconds_per_call=1)})
    assert tomllib.loads(written)["worker"][0]["cost"] == {"seconds_per_call": 1.0}


@pytest.mark.parametrize(
    "text",
    [
        '[[worker]]\nname = "a"\n[worker.cost]\nseconds_per_call = 2\n',
        '[[worker]]\nname = "a"\ncost.seconds_per_call = 2\n',
    ],
)
def test_tables_of_costs_are_left_alone(text: str, tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(text)
    with pytest.raises(PoolError, match="write each cost on one line"):
        write_costs(path, {"a": Cost(seconds_per_call=1)})
    assert path.read_text() == text


def test_a_file_that_was_written_reads_alike(tmp_path: Path) -> None:
    path = tmp_path / "pool.toml"
    path.write_text(POOL)
    cost = Cost(seconds_per_token=0.1234, resident_bytes=5.0, price_per_million_tokens=2.0)
    write_costs(path, {"big": cost})
    assert read_pool(path, PRIMITIVES)["big"].cost == cost
    with pytest.raises(PoolError, match="No such file"):
        write_costs(tmp_path / "none.toml", {})


def test_a_worker_is_measured() -> None:
    worker, entry = FakeWorker(echo), pool()["big"]
    cost = asyncio.run(measure_worker(worker, entry, resident_bytes=7.0))
    assert cost.seconds_per_prompt_token >= 0
    assert cost.seconds_per_token >= 0
    assert (cost.resident_bytes, cost.price_per_million_tokens) == (7, 2)
    assert len(worker.questions) == 3
    assert worker.questions[1].messages == worker.questions[2].messages


def test_joules(tmp_path: Path) -> None:
    assert joules(tmp_path) is None
    for number, name in enumerate(("package-0", "package-1", "core")):
        folder = tmp_path / f"intel-rapl:{number}"
        folder.mkdir()
        (folder / "name").write_text(name + "\n")
        (folder / "energy_uj").write_text("1500000\n")
    assert joules(tmp_path) == 3.0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("x")
    assert joules(tmp_path) is None
