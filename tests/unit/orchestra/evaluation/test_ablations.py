"""Ablations: what a policy may no longer do, and what it still may."""

import asyncio
import random

import pytest

from orchestra_cases import PASS, RandomPolicy, ScriptedPolicy, plan, players, route
from powerinfer.orchestra.actions import FinalAnswer, Verify
from powerinfer.orchestra.evaluation.ablations import Ablated, ablations
from powerinfer.orchestra.evaluation.truth import Arm
from powerinfer.orchestra.rules import violations
from powerinfer.orchestra.runtime import Outcome, run_task

ANSWER = FinalAnswer("done")
TINY = Arm("tiny", "answer")


def _done(ablated: Ablated) -> Outcome:
    return asyncio.run(run_task("the task", players(ablated)))  # type: ignore[arg-type]


def test_without_splitting_a_plan_is_the_whole_task() -> None:
    script = ScriptedPolicy([plan((), (1,)), route(1), PASS, ANSWER])
    outcome = _done(Ablated(policy=script, may_split=False))
    assert [each.text for each in outcome.state.subtasks.values()] == ["the task"]
    assert outcome.answer == "done"
    # To answer at once is no split.
    lazy = _done(Ablated(policy=ScriptedPolicy([ANSWER]), may_split=False))
    assert (lazy.answer, lazy.state.round) == ("done", 0)


def test_without_verification_results_are_accepted() -> None:
    script = ScriptedPolicy([plan(()), route(1), ANSWER])
    outcome = _done(Ablated(policy=script, may_verify=False))
    assert [each for each in outcome.state.elements if isinstance(each, Verify)] == [
        Verify(1, (), "not checked")
    ]


def test_without_routing_one_pair_is_offered() -> None:
    script = ScriptedPolicy([plan(()), route(1), PASS, ANSWER])
    _done(Ablated(policy=script, only=TINY))
    assert all(dict(each) == {"tiny": ("answer",)} for each in script.offers)


@pytest.mark.parametrize("seed", range(6))
def test_the_rules_hold(seed: int) -> None:
    for _, ablated in ablations(RandomPolicy(random.Random(seed)), TINY):
        outcome = asyncio.run(run_task("the task", players(ablated)))  # type: ignore[arg-type]
        everything = {"tiny": ["answer"], "big": ["answer"], "cloud": ["answer"]} | {
            "tools": ["read", "send"]
        }
        assert outcome.error == ""
        assert violations(outcome.state.turns, everything) == ()
