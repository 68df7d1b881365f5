"""Intervals and reports."""

import json

import numpy as np
import pytest

from powerinfer.orchestra.evaluation.episodes import Episode
from powerinfer.orchestra.evaluation.intervals import mean_interval, share_interval
from powerinfer.orchestra.evaluation.report import report_json, summarize, table
from powerinfer.orchestra.evaluation.reward import CostScale, Objective

OBJECTIVE = Objective(scale=CostScale(0.0, 2.0), cost_weight=0.1)


def test_wilson_intervals() -> None:
    """Values of Newcombe (1998), table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29."""
    for successes, count, low, high in [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ]:
        found = share_interval(successes, count)
        assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)
        assert found.value == successes / count
    assert share_interval(20, 20).high == 1.0


def test_bootstrap_intervals_are_those_of_means() -> None:
    values = np.random.default_rng(1).normal(3.0, 2.0, 400).tolist()
    found = mean_interval(values)
    assert found == mean_interval(values)
    assert found.value == pytest.approx(np.mean(values))
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * 2.0 / 20, rel=0.15)
    assert mean_interval([2.0]).low == mean_interval([2.0]).high == 2.0


def _episode(policy: str, *, is_right: bool, best: float | None = None, **rest: float) -> Episode:
    return Episode(
        policy=policy,
        task="t",
        kind="sums" if is_right else "names",
        answer="x",
        is_right=is_right,
        seconds=rest.get("seconds", 1.0),
        expected=rest.get("expected"),
        best=best,
    )


def test_rows_are_means_by_policy() -> None:
    episodes = [
        _episode("b", is_right=True, best=1.0, seconds=1.0),
        _episode("a", is_right=False),
        _episode("b", is_right=False, best=0.8, expected=0.7, seconds=3.0),
    ]
    b, a = summarize(episodes, OBJECTIVE)
    assert (b.policy, b.tasks, a.policy, a.tasks) == ("b", 2, "a", 1)
    assert (b.accuracy.value, b.seconds.value) == (0.5, 2.0)
    assert b.reward.value == pytest.approx(0.95 / 2)
    # Against the expected reward where it is known.
    assert b.regret is not None
    assert b.regret.value == pytest.approx(((1.0 - 0.95) + (0.8 - 0.7)) / 2)
    assert b.accuracy_by_kind == {"names": 0.0, "sums": 1.0}
    assert a.regret is None


def test_reports_as_json_and_as_a_table() -> None:
    known = summarize([_episode("a", is_right=True, best=1.0)], OBJECTIVE)
    unknown = summarize([_episode("a", is_right=True)], OBJECTIVE)
    report = json.loads(json.dumps(report_json(known, OBJECTIVE)))
    assert report["objective"]["cost_weight"] == 0.1
    assert report["policies"][0]["accuracy"]["value"] == 1.0
    assert report["policies"][0]["regret"]["value"] == pytest.approx(0.05)
    headings, cells = table(known)
    assert headings.index("regret") == cells.index("0.050")
    assert len(headings) == len(cells)
    headings, cells = table(unknown)
    assert "regret" not in headings
    assert len(headings) == len(cells)
