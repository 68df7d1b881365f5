"""How many drafts a step gets."""

import numpy as np
import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.engine.costs import RowCosts
from powerinfer.engine.drafts.acceptance import Acceptance, Guess
from powerinfer.engine.drafts.drafter import MAX_ROWS, Draft
from powerinfer.engine.drafts.row_planner import RowPlanner
from powerinfer.engine.request import Request
from scheduling_cases import new_engine, run

DRAFT = Draft((1, 2, 3, 4, 5, 6, 7), range(8, 15))


def _costs(**seconds: float) -> RowCosts:
    costs = RowCosts()
    for _ in range(3):
        for name, each in seconds.items():
            costs.record(int(name[1:]), each)
    return costs


def test_chances_follow_what_was_right() -> None:
    acceptance = Acceptance()
    before = acceptance.chances(DRAFT)
    assert before == sorted(before, reverse=True)
    for _ in range(40):
        acceptance.learn(DRAFT, [1, 2, 3, 4, 5, 6, 7, 8])
    assert acceptance.chances(DRAFT)[-1] > 0.9 > before[-1]
    for _ in range(10):
        acceptance.learn(DRAFT, [9])
    # What came before says little any more; of longer matches nothing else is known.
    assert acceptance.chance(8) < 0.6
    assert acceptance.chance(16) == Acceptance().chance(16)
    # Tokens that have not come say nothing.
    known = acceptance.chances(DRAFT)
    acceptance.learn(DRAFT, [])
    assert acceptance.chances(DRAFT) == known


def test_costs_of_sizes_that_were_measured() -> None:
    costs = _costs(n1=1.0, n4=2.0, n8=4.0)
    assert [costs.seconds(size) for size in (1, 4, 8)] == [1, 2, 4]
    # Between them, and beyond them.
    assert costs.seconds(3) == pytest.approx(1 + 2 / 3)
    assert costs.seconds(6) == 3
    assert costs.seconds(15) == pytest.approx(1 + 14 * 3 / 7)


def test_costs_before_anything_is_known() -> None:
    costs = RowCosts()
    assert costs.seconds(1) is None
    costs.record(1, 1.0)
    assert costs.seconds(1) == 1
    assert costs.seconds(3) == pytest.approx(1.2)
    # The first steps of a size count only if they are faster than expected.
    costs.record(3, 9.0)
    assert costs.seconds(3) == pytest.approx(1.2)
    costs.record(3, 9.0)
    costs.record(3, 9.0)
    assert costs.seconds(3) == 9


def test_a_disturbed_step_changes_nothing_and_old_sizes_are_tried_again() -> None:
    costs = _costs(n1=1.0, n2=9.0)
    costs.record(1, 50.0)
    assert costs.seconds(1) == 1
    assert costs.seconds(2) == 9
    for _ in range(3 * RowCosts._LIFE):
        costs.record(1, 1.0)
    assert costs.seconds(2) == pytest.approx(1.1)


def _chosen(costs: RowCosts, chance: float, num_texts: int = 1, drafting_s: float = 0.0) -> int:
    """How many drafts a step gets whose tokens are right with this probability."""
    rows = RowPlanner(has_states=False)
    rows.costs = costs
    guesses = [Guess((), [chance**number for number in range(1, 8)])] * num_texts
    best = rows.best(
        guesses, [1] * num_texts, lambda counts: drafting_s * max(counts.values(), default=0)
    )
    return 0 if best is None else sum(best.counts.values())


def test_what_drafting_takes_is_part_of_the_cost() -> None:
    costs = _costs(n1=1.0, n8=1.2)
    assert _chosen(costs, 0.9, drafting_s=0.05) == 7
    assert 0 < _chosen(costs, 0.7, drafting_s=0.2) < 7
    assert _chosen(costs, 0.9, drafting_s=0.9) == 0


def test_as_many_drafts_as_pay() -> None:
    flat = _costs(n1=1.0, n8=1.2)
    steep = _costs(n1=1.0, n2=1.5, n8=4.0)
    assert _chosen(flat, 0.9) == 7
    assert _chosen(flat, 0.02) == 0
    assert 0 < _chosen(steep, 0.95) <= 7
    assert _chosen(steep, 0.5) == 0
    assert _chosen(RowCosts(), 0.9) == 0
    # The most tokens per second, by hand.
    costs = _costs(n1=1.0, n2=1.2, n3=1.4, n4=1.6, n6=2.6, n8=3.0)
    rates = {
        count: sum(0.8**number for number in range(count + 1)) / (costs.seconds(1 + count) or 0)
        for count in (0, 1, 2, 3, 5, 7)
    }
    assert _chosen(costs, 0.8) == max(rates, key=lambda count: rates[count]) == 3


def test_texts_share_the_rows() -> None:
    costs = _costs(n1=1.0, n8=1.1)
    assert _chosen(costs, 0.9, num_texts=2) == MAX_ROWS - 2
    assert _chosen(costs, 0.9, num_texts=7) == 1
    assert _chosen(costs, 0.9, num_texts=8) == 0


def test_the_likeliest_drafts_of_all_texts_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One text repeats itself, the other one is random."""
    with LLM(threads=1, context_length=256) as llm:
        engine = new_engine(llm, kv_tokens=1024)
        random = np.random.default_rng(1).integers(5, 250, 60).tolist()
        prompts = [[*range(20, 60), *range(20, 40)], random]
        params = SamplingParams(seed=1, max_tokens=40, logit_bias={40: 30.0}, temperature=0)
        handles = [engine.submit(Request(prompt_ids=each, params=params)) for each in prompts]
        monkeypatch.setattr(engine._drafts._rows, "costs", _costs(n1=1.0, n2=1.0, n4=1.01, n8=1.02))
        monkeypatch.setattr(engine._drafts._rows.costs, "record", lambda *_: None)
        run(engine, handles)
        one, other = (handle.metrics() for handle in handles)
        assert one.num_accepted > 0
        assert other.decode_tokens == 40


@pytest.mark.parametrize("setting", ["off", "auto", "ngram:2"])
def test_a_request_has_its_own_setting(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(threads=1, context_length=128, draft="auto" if setting == "off" else "off") as llm:
        engine = new_engine(llm)
        costs = _costs(n1=1.0, n8=1.01)
        monkeypatch.setattr(costs, "record", lambda *_: None)
        engine._drafts._rows.costs = costs
        params = SamplingParams(max_tokens=30, ignore_eos=True, logit_bias={40: 90}, draft=setting)
        request = Request(prompt_ids=[10, 40, 40, 40, 40], params=params)
        handle = engine.submit(request)
        run(engine, [handle])
        metrics = handle.metrics()
        assert (metrics.num_accepted > 0) == (setting != "off")
        assert metrics.decode_steps + metrics.num_accepted == 29
