"""The live panel: speed, queue, keys and values, and the neurons of each layer."""

from typing import Any

import numpy as np
import pytest

from page_server import PageServer
from page_visit import Visit, expect
from powerinfer.engine.statistics import EngineStatistics
from powerinfer.models import LayerShares

# Each visit takes a second.
pytestmark = pytest.mark.slow

ACTIVE = [0.02, 0.1, 0.3]
UNION = [0.05, 0.3, 0.42]


@pytest.fixture
def busy(server: PageServer, monkeypatch: pytest.MonkeyPatch) -> PageServer:
    """A server that is at work and counts everything."""
    tokens = iter(range(0, 100_000, 40))

    layers = LayerShares(np.array(ACTIVE, np.float32), np.array(UNION, np.float32))

    def statistics() -> EngineStatistics:
        return EngineStatistics(
            running=3,
            waiting=2,
            blocks=64,
            blocks_used=32,
            blocks_cached=16,
            states=20,
            states_used=6,
            states_cached=9,
            steps=0,
            generated_tokens=next(tokens),
            prompt_tokens=200,
            cached_tokens=50,
            drafted_tokens=40,
            accepted_tokens=30,
            text_steps=60,
            layers=layers,
        )

    monkeypatch.setattr(server.fake, "statistics", statistics)
    return server


def test_figures_are_shown_and_follow(visit: Visit, busy: PageServer) -> None:
    visit.button("Live").click()
    live = visit.page.get_by_role("complementary", name="Live")
    expect(live.locator(".tile")).to_have_text(["Tokens/s–", "Running3", "Waiting2"])
    # 40 tokens between two questions, which are a second apart or more.
    expect(live.locator(".tile").first).not_to_contain_text("–")
    rate = float(live.locator(".tile strong").first.inner_text())
    assert 0 < rate < 60
    expect(live.get_by_role("img", name="50 % in use, 25 % kept")).to_be_visible()
    expect(live).to_contain_text("25 % of all prompt tokens were computed before.")
    expect(live).to_contain_text("States: 6 in use, 9 kept for prompts that begin alike, room for")
    expect(live).to_contain_text("75 % of 40 drafted tokens accepted, 1.50 tokens per step.")


def test_neurons_have_bars_words_and_numbers(visit: Visit, busy: PageServer) -> None:
    visit.button("Live").click()
    chart = visit.page.get_by_role("img", name="On average 14 % of a layer's neurons fire")
    expect(chart).to_be_visible()
    for kind, shares in (("active", ACTIVE), ("union", UNION)):
        heights = [
            float(bar.get_attribute("height") or 0) for bar in chart.locator(f".{kind}").all()
        ]
        # The scale ends at 50 %, 120 units high.
        assert heights == pytest.approx([share / 0.5 * 120 for share in shares])
    expect(chart.locator("title").first).to_have_text("Layer 1: 2.0 % fire, 5.0 % for the batch")
    visit.page.get_by_text("As numbers").click()
    table = visit.page.get_by_role("table")
    expect(table.get_by_role("row")).to_have_text(
        ["LayerFireBatch", "12.0 %5.0 %", "210 %30 %", "330 %42 %"]
    )


def test_it_asks_only_while_it_is_open(visit: Visit, busy: PageServer) -> None:
    def num_asked() -> int:
        return sum(url.endswith("/panel") for url in visit.requests)

    visit.page.wait_for_timeout(300)
    assert num_asked() == 0
    begun = visit.page.evaluate("performance.now()")
    visit.button("Live").click()
    for _ in range(2):
        visit.page.wait_for_event("requestfinished", lambda each: each.url.endswith("/panel"))
    passed_s = (visit.page.evaluate("performance.now()") - begun) / 1000
    assert 2 <= num_asked() <= passed_s + 2
    visit.button("Live").click()
    visit.page.wait_for_timeout(300)
    before = num_asked()
    visit.page.wait_for_timeout(1500)
    assert num_asked() == before


def test_an_engine_that_counts_little(visit: Visit) -> None:
    visit.button("Live").click()
    live = visit.page.get_by_role("complementary", name="Live")
    expect(live).to_contain_text("Not counted yet, or not by this engine.")
    expect(live).to_contain_text("Running0")
    expect(live.get_by_text("As numbers")).to_be_hidden()


def test_a_server_that_is_gone(visit: Visit) -> None:
    visit.expected.append("ERR_")
    visit.page.route("**/panel", lambda route: route.abort())
    visit.button("Live").click()
    live: Any = visit.page.get_by_role("complementary", name="Live")
    expect(live).to_contain_text("The connection was lost")
    visit.page.unroute("**/panel")
    expect(live).to_contain_text("Running0")
