"""What the browser keeps: chats, settings, drafts and the theme, over reloads and in other tabs."""

import pytest

from page_server import PageServer
from page_visit import Visit, Visitor, expect

# Each visit takes a second.
pytestmark = pytest.mark.slow

WORDS = tuple(f"word{number} " for number in range(200))


def test_a_reload_loses_nothing(visit: Visit) -> None:
    visit.ask("One?")
    visit.message.fill("not sent yet")
    visit.page.reload()
    expect(visit.questions).to_have_text(["One?"])
    expect(visit.answers).to_contain_text("Hello there.")
    expect(visit.message).to_have_value("not sent yet")
    assert visit.chats == ["One?"]


def test_a_reload_while_an_answer_is_written_keeps_it(visit: Visit, server: PageServer) -> None:
    server.play(WORDS, step_s=0.03)
    visit.message.fill("Write a lot")
    visit.message.press("Enter")
    expect(visit.answers).to_contain_text("word9")
    visit.page.reload()
    expect(visit.answers).to_contain_text("word9")
    expect(visit.answers).to_contain_text("The answer broke off")
    server.play(("Whole.",))
    visit.button("Retry").click()
    expect(visit.answers).to_contain_text("Whole.")
    expect(visit.answers).to_have_count(1)
    expect(visit.questions).to_have_text(["Write a lot"])


def test_several_chats(visit: Visit) -> None:
    visit.ask("First chat")
    visit.button("New chat").click()
    expect(visit.answers).to_have_count(0)
    expect(visit.message).to_be_focused()
    visit.ask("Second chat")
    assert visit.chats == ["Second chat", "First chat"]
    visit.button("First chat").click()
    expect(visit.questions).to_have_text(["First chat"])
    expect(visit.button("First chat")).to_have_attribute("aria-current", "true")


def test_a_chat_is_renamed(visit: Visit) -> None:
    visit.ask("First chat")
    visit.button("Rename").click()
    name = visit.page.get_by_role("dialog").get_by_role("textbox", name="Name")
    expect(name).to_have_value("First chat")
    name.fill("<b>Better</b>")
    name.press("Enter")
    expect(visit.page.locator(".chat-title")).to_have_text(["<b>Better</b>"])
    visit.page.reload()
    expect(visit.page.locator(".chat-title")).to_have_text(["<b>Better</b>"])


def test_a_chat_is_deleted_when_the_user_agrees(visit: Visit) -> None:
    visit.ask("First chat")
    visit.button("Delete").click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert visit.chats == ["First chat"]
    visit.button("Delete").click()
    dialog.get_by_role("button", name="Delete").click()
    expect(visit.answers).to_have_count(0)
    visit.page.reload()
    assert visit.chats == []


def test_an_answer_goes_on_while_another_chat_is_open(visit: Visit, server: PageServer) -> None:
    server.play(WORDS[:40], step_s=0.02)
    visit.message.fill("Slow one")
    visit.message.press("Enter")
    expect(visit.answers).to_contain_text("word1")
    visit.button("New chat").click()
    expect(visit.button("Send")).to_be_visible()
    expect(visit.page.locator(".row.writing")).to_have_count(1)
    expect(visit.page.locator(".row.writing")).to_have_count(0)
    visit.button("Slow one").click()
    expect(visit.answers).to_contain_text("word39")


def test_tabs_share_their_chats(visit: Visit) -> None:
    first = visit.page
    second = visit.open()
    visit.ask("From the second tab")
    expect(first.get_by_role("button", name="From the second tab")).to_be_visible()
    first.get_by_role("button", name="From the second tab").click()
    expect(first.get_by_role("article", name="Answer")).to_contain_text("Hello there.")
    second.get_by_role("button", name="Delete", exact=True).click()
    second.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(first.locator(".chat-title")).to_have_count(0)


def test_settings_reach_the_request_and_stay(visit: Visit) -> None:
    visit.button("Settings").click()
    visit.page.get_by_label("System prompt").fill("Answer briefly.")
    visit.page.get_by_label("Temperature").fill("0.3")
    visit.page.reload()
    visit.ask("One?")
    body = visit.bodies[0]
    assert body["messages"][0] == {"role": "system", "content": "Answer briefly."}
    assert body["temperature"] == 0.3
    assert "top_p" not in body
    visit.button("Settings").click()
    expect(visit.page.get_by_label("Temperature")).to_have_value("0.3")
    visit.button("Back to the defaults").click()
    expect(visit.page.get_by_label("System prompt")).to_have_value("")
    visit.ask("Two?")
    assert "temperature" not in visit.bodies[1]
    assert visit.bodies[1]["messages"][0]["role"] == "user"


def test_settings_show_the_defaults_of_the_server(visit: Visit) -> None:
    visit.button("Settings").click()
    expect(visit.page.get_by_label("Temperature")).to_have_attribute("placeholder", "0.8")
    expect(visit.page.get_by_label("Top k")).to_have_attribute("placeholder", "40")


@pytest.mark.parametrize(
    ("label", "wrong"),
    [("Temperature", "3"), pytest.param("Top k", "1.5", marks=pytest.mark.thorough)],
)
def test_a_wrong_setting_is_not_sent(visit: Visit, label: str, wrong: str) -> None:
    visit.button("Settings").click()
    field = visit.page.get_by_label(label, exact=True)
    field.fill(wrong)
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_accessible_description(
        "a number from 0 to 2" if label == "Temperature" else "a whole number, 0 or more"
    )
    visit.ask("One?")
    assert not {"temperature", "top_k"} & visit.bodies[0].keys()


@pytest.mark.parametrize(
    ("system", "other"),
    [("light", "dark"), pytest.param("dark", "light", marks=pytest.mark.thorough)],
)
def test_the_theme_follows_the_system_until_it_is_chosen(
    visitor: Visitor, server: PageServer, system: str, other: str
) -> None:
    with visitor(server.url, color_scheme=system) as visit:
        root = visit.page.locator("html")
        expect(root).to_have_attribute("data-theme", system)
        visit.button("Theme").click()
        expect(root).to_have_attribute("data-theme", other)
        ground = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (other == "light")
        visit.page.reload()
        expect(root).to_have_attribute("data-theme", other)


def test_a_storage_that_is_full_is_told(visit: Visit) -> None:
    visit.page.evaluate("() => { Storage.prototype.setItem = () => { throw new Error('full'); }; }")
    expect(visit.ask("One?")).to_contain_text("Hello there.")
    expect(visit.page.get_by_text("browser storage is full")).to_be_visible()


def test_foreign_values_in_the_storage_are_passed_over(visit: Visit) -> None:
    visit.page.evaluate(
        """() => {
          localStorage.setItem("powerinfer.chat.x", "{nonsense");
          localStorage.setItem("powerinfer.chat.y", JSON.stringify({id: "y", title: 1}));
          localStorage.setItem("powerinfer.settings", "[]x");
        }"""
    )
    visit.page.reload()
    expect(visit.ask("One?")).to_contain_text("Hello there.")
    assert visit.chats == ["One?"]
