"""What axe-core finds on the page in each state, in both themes: nothing that is serious."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from page_server import PageServer
from page_visit import Visit, Visitor, expect
from powerinfer.models import LayerShares

if TYPE_CHECKING:
    from axe_playwright_python.sync_playwright import Axe

# Each visit takes a second.
pytestmark = pytest.mark.slow

TEXT = """# Title

Some *text* with [a link](https://a.example/) and `code`.

```python
# A comment
def f(x: int) -> str:
    return f"{x + 1}" if x is not None else "none"
```

| left | right |
|:--|--:|
| 1 | 2 |

> quoted

1. one
"""
# One theme for each state, both in all.
LIGHT_FIRST = ("light", pytest.param("dark", marks=pytest.mark.thorough))
DARK_FIRST = (pytest.param("light", marks=pytest.mark.thorough), "dark")


@pytest.fixture(scope="module")
def axe() -> "Axe":
    pytest.importorskip("axe_playwright_python", reason="playwright is not installed")
    from axe_playwright_python.sync_playwright import Axe

    return Axe()


def _check(axe: "Axe", visit: Visit) -> None:
    # Colours in transition are neither the old nor the new ones.
    visit.page.wait_for_timeout(250)
    found: Any = axe.run(visit.page).response
    assert "color-contrast" in {each["id"] for each in found["passes"]}
    serious = [
        (each["id"], [node["html"] for node in each["nodes"]])
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
    ]
    assert serious == []


@pytest.mark.parametrize("theme", DARK_FIRST)
def test_a_chat(visitor: Visitor, server: PageServer, axe: "Axe", theme: str) -> None:
    server.play((TEXT,))
    with visitor(server.url, color_scheme=theme) as visit:
        _check(axe, visit)
        answer = visit.ask("Show everything")
        expect(answer.locator(".hljs-keyword").first).to_be_visible()
        _check(axe, visit)
        visit.button("Edit").click()
        _check(axe, visit)


@pytest.mark.parametrize("theme", LIGHT_FIRST)
def test_panels_and_dialogs(
    visitor: Visitor,
    server: PageServer,
    axe: "Axe",
    theme: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shares = np.array([0.02, 0.3], np.float32)
    counted = SimpleNamespace(blocks=4, blocks_used=2, layers=LayerShares(shares, shares))
    monkeypatch.setattr(server.fake, "statistics", lambda: counted)
    with visitor(server.url, color_scheme=theme) as visit:
        visit.ask("One?")
        visit.button("Live").click()
        visit.page.get_by_text("As numbers").click()
        expect(visit.page.get_by_role("table")).to_be_visible()
        _check(axe, visit)
        visit.button("Settings").click()
        visit.page.get_by_label("Temperature").fill("9")
        _check(axe, visit)
        visit.button("Delete").click()
        _check(axe, visit)


@pytest.mark.parametrize("theme", DARK_FIRST)
def test_failures_and_notes(visitor: Visitor, server: PageServer, axe: "Axe", theme: str) -> None:
    begin = 'data: {"choices":[{"delta":{"reasoning_content":"Hm.","content":"Half"}}]}\n\n'
    with visitor(server.url, color_scheme=theme) as visit:
        visit.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=begin))
        visit.ask("One?").get_by_text("Thoughts").click()
        _check(axe, visit)
        visit.page.unroute("**/v1/chat/completions")
        server.play(tuple(f"word{at} " for at in range(100)), step_s=0.05)
        visit.button("Retry").click()
        expect(visit.answers).to_contain_text("word1")
        _check(axe, visit)
        visit.button("Stop").click()
        expect(visit.answers).to_contain_text("You stopped")
        _check(axe, visit)


@pytest.mark.parametrize("theme", LIGHT_FIRST)
def test_a_phone(visitor: Visitor, server: PageServer, axe: "Axe", theme: str) -> None:
    phone = {"viewport": {"width": 390, "height": 760}, "has_touch": True, "is_mobile": True}
    with visitor(server.url, color_scheme=theme, **phone) as visit:
        visit.ask("One?")
        _check(axe, visit)
        visit.button("Chats").tap()
        _check(axe, visit)
