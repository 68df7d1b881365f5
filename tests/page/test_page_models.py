"""The menu of models, on a server that has several."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_models import FakeModel
from page_server import PageServer, page_server
from page_visit import Visit, Visitor, expect

# Each visit takes a second.
pytestmark = pytest.mark.slow

PHONE = {"viewport": {"width": 390, "height": 760}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def models(tmp_path: Path) -> list[FakeModel]:
    names = ("first", "a-model-with-a-very-long-name-of-which-a-phone-shows-a-part")
    return [FakeModel(name, tmp_path / str(number)) for number, name in enumerate(names)]


@pytest.fixture
def pool(models: list[FakeModel]) -> Iterator[PageServer]:
    with page_server(sources=[model.source() for model in models]) as server:
        yield server


def test_one_model_has_no_menu(visit: Visit) -> None:
    expect(visit.page.get_by_role("heading", name="Chat with test-model")).to_be_visible()
    expect(visit.page.get_by_label("Model", exact=True)).to_be_hidden()
    visit.ask("One?")
    assert "model" not in visit.bodies[0]


def test_the_chosen_model_answers(
    visitor: Visitor, pool: PageServer, models: list[FakeModel]
) -> None:
    second = models[1]
    second.may_load.clear()
    with visitor(pool.url) as visit:
        menu = visit.page.get_by_label("Model", exact=True)
        expect(menu).to_have_value("first")
        expect(visit.ask("One?")).to_contain_text("first1")
        # With the keyboard alone.
        menu.focus()
        visit.page.keyboard.press("ArrowDown")
        expect(menu).to_have_value(second.name)
        assert visit.page.title() == f"{second.name} – PowerInfer"
        visit.message.fill("Two?")
        visit.message.press("Enter")
        expect(visit.page.locator("#server-state")).to_have_text("loading 50 %")
        second.may_load.set()
        expect(visit.complete()).to_contain_text(f"{second.name}1")
        expect(visit.page.locator("#server-state")).to_be_hidden()
        assert visit.bodies[-1]["model"] == second.name
        visit.button("Live").click()
        expect(visit.page.get_by_role("complementary", name="Live")).to_contain_text("Running")
        assert any(f"panel?model={second.name}" in url for url in visit.requests)
        # It holds for the browser.
        visit.page.reload()
        expect(menu).to_have_value(second.name)


def test_a_model_that_has_gone_is_not_asked(visitor: Visitor, pool: PageServer) -> None:
    with visitor(pool.url) as visit:
        visit.page.evaluate("localStorage.setItem('powerinfer.model', 'gone')")
        visit.page.reload()
        expect(visit.page.get_by_label("Model", exact=True)).to_have_value("first")
        visit.ask("One?")
        assert "model" not in visit.bodies[0]


def test_a_phone_shows_a_part_of_a_long_name(
    visitor: Visitor, pool: PageServer, models: list[FakeModel]
) -> None:
    with visitor(pool.url, **PHONE) as visit:
        menu = visit.page.get_by_label("Model", exact=True)
        menu.select_option(models[1].name)
        expect(visit.ask("One?")).to_contain_text(f"{models[1].name}1")
        assert visit.page.evaluate("document.documentElement.scrollWidth") == 390
        for button in ("Chats", "Live", "Settings"):
            expect(visit.button(button)).to_be_in_viewport()
        box = menu.bounding_box()
        assert box is not None
        assert box["height"] >= 24
