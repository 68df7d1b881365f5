"""The page without a mouse, on a phone, and for a screen reader."""

import pytest

from page_server import PageServer
from page_visit import Visit, Visitor, expect

# Each visit takes a second.
pytestmark = pytest.mark.slow

WORDS = tuple(f"word{number} " for number in range(100))
PHONE = {"viewport": {"width": 390, "height": 760}, "has_touch": True, "is_mobile": True}


def test_enter_sends_and_shift_enter_does_not(visit: Visit) -> None:
    expect(visit.message).to_be_focused()
    visit.page.keyboard.type("one")
    visit.page.keyboard.press("Shift+Enter")
    visit.page.keyboard.type("two")
    before = visit.message.bounding_box()
    visit.page.keyboard.press("Enter")
    visit.complete()
    after = visit.message.bounding_box()
    assert visit.bodies[0]["messages"][0]["content"] == "one\ntwo"
    assert before is not None
    assert after is not None
    assert before["height"] > after["height"]
    expect(visit.message).to_be_focused()


def test_enter_within_an_input_method_does_not_send(visit: Visit) -> None:
    visit.message.fill("に")
    visit.message.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    visit.page.wait_for_timeout(100)
    assert visit.bodies == []


# The next test ends with it.
@pytest.mark.thorough
def test_escape_stops(visit: Visit, server: PageServer) -> None:
    server.play(WORDS, step_s=0.05)
    visit.message.fill("Write a lot")
    visit.message.press("Enter")
    expect(visit.answers).to_contain_text("word1")
    visit.page.keyboard.press("Escape")
    expect(visit.answers).to_contain_text("You stopped this answer.")


def test_escape_closes_a_panel_and_goes_back(visit: Visit, server: PageServer) -> None:
    server.play(WORDS, step_s=0.05)
    visit.message.fill("Write a lot")
    visit.message.press("Enter")
    visit.button("Settings").click()
    expect(visit.page.get_by_label("System prompt")).to_be_focused()
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_label("System prompt")).to_be_hidden()
    expect(visit.button("Settings")).to_be_focused()
    expect(visit.answers).not_to_contain_text("You stopped")
    visit.page.keyboard.press("Escape")
    expect(visit.answers).to_contain_text("You stopped this answer.")


def test_a_shortcut_begins_a_new_chat(visit: Visit) -> None:
    visit.ask("One?")
    visit.page.keyboard.press("Control+Shift+O")
    expect(visit.answers).to_have_count(0)
    expect(visit.message).to_be_focused()


def test_tab_reaches_everything_in_reading_order(visit: Visit) -> None:
    visit.ask("One?")
    visit.page.get_by_role("link", name="Skip to the input").focus()
    names = []
    for _ in range(13):
        visit.page.keyboard.press("Tab")
        names.append(
            visit.page.evaluate(
                """() => {
                  const here = document.activeElement;
                  return here.getAttribute("aria-label") ?? here.innerText;
                }"""
            )
        )
    expected = ["New chat", "One?", "Rename", "Delete", "Live", "Settings", "Theme"]
    expected += ["Conversation", "Copy", "Edit", "Copy", "Regenerate", "Message"]
    assert names == expected


def test_the_skip_link(visit: Visit) -> None:
    visit.button("New chat").focus()
    visit.page.keyboard.press("Shift+Tab")
    expect(visit.page.get_by_role("link", name="Skip to the input")).to_be_in_viewport()
    visit.page.keyboard.press("Enter")
    expect(visit.message).to_be_focused()


def test_a_screen_reader_hears_whole_answers(visit: Visit, server: PageServer) -> None:
    server.play(WORDS[:30], step_s=0.02)
    visit.page.evaluate(
        """() => {
          window.heard = [];
          new MutationObserver(() => {
            const { textContent } = document.querySelector("[role=status]");
            if (textContent) window.heard.push(textContent);
          }).observe(document.querySelector("[role=status]"), { childList: true });
        }"""
    )
    visit.ask("Write")
    visit.page.wait_for_timeout(200)
    assert visit.page.evaluate("heard") == ["Writing an answer", "".join(WORDS[:30]).strip()]
    # No other part is read while it changes.
    live = visit.page.locator("[aria-live], [role=log], [role=alert], [role=status]")
    expect(live).to_have_count(1)


def test_a_phone(visitor: Visitor, server: PageServer) -> None:
    server.play(("```text\n" + "wide " * 80 + "\n```\n\n" + "unbroken" * 60,))
    with visitor(server.url, **PHONE) as visit:
        visit.message.fill("One?")
        visit.button("Send").tap()
        visit.complete()
        expect(visit.button("New chat")).to_be_hidden()
        overflow = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert visit.page.evaluate(overflow) is False
        for panel in ("Live", "Settings"):
            visit.button(panel).tap()
            expect(visit.page.get_by_role("heading", name=panel)).to_be_in_viewport()
            assert visit.page.evaluate(overflow) is False
            visit.button(panel).tap()
        visit.button("Chats").tap()
        visit.button("New chat").tap()
        expect(visit.answers).to_have_count(0)
        expect(visit.button("New chat")).to_be_hidden()
        visit.button("Chats").tap()
        visit.button("One?").tap()
        expect(visit.questions).to_have_text(["One?"])
        visit.button("Chats").tap()
        visit.page.touchscreen.tap(380, 400)
        expect(visit.button("New chat")).to_be_hidden()
        expect(visit.button("Chats")).to_be_focused()


def test_targets_are_large_enough_for_fingers(visitor: Visitor, server: PageServer) -> None:
    """24 pixels and more (WCAG 2.2, 2.5.8)."""
    with visitor(server.url, **PHONE) as visit:
        visit.ask("One?")
        for button in visit.page.get_by_role("button").all():
            box = button.bounding_box()
            assert box is None or min(box["width"], box["height"]) >= 24


def test_the_page_follows_an_answer_until_the_user_scrolls(
    visit: Visit, server: PageServer
) -> None:
    server.play([f"line {at}\n\n" for at in range(80)], step_s=0.03)
    visit.message.fill("Write a lot")
    visit.message.press("Enter")
    expect(visit.page.get_by_text("line 40", exact=True)).to_be_attached()
    # Not a certain line: it may have moved on before the browser is asked.
    conversation = visit.page.get_by_label("Conversation")
    left = "each => each.scrollHeight - each.scrollTop - each.clientHeight"
    assert conversation.evaluate("each => each.scrollTop") > 0
    assert conversation.evaluate(left) < 100
    conversation.hover()
    visit.page.mouse.wheel(0, -2000)
    expect(visit.button("Latest")).to_be_visible()
    expect(visit.page.get_by_text("line 1", exact=True)).to_be_in_viewport()
    visit.page.wait_for_timeout(300)
    expect(visit.page.get_by_text("line 1", exact=True)).to_be_in_viewport()
    visit.button("Latest").click()
    visit.complete()
    expect(visit.page.get_by_text("line 79", exact=True)).to_be_in_viewport()
