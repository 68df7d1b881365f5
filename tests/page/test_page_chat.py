"""The chat page: asking, stopping, asking again, and what a chat leaves behind."""

import pytest

from page_server import PageServer
from page_visit import Visit, expect

WORDS = tuple(f"word{number} " for number in range(200))


def test_an_answer_appears_as_markdown(
    visit: Visit, server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.fake, "drafts", (3, 2))
    server.play(("Some **bo", "ld** text", "\n\n- one\n", "- two"))
    answer = visit.ask("Say something bold")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("li")).to_have_text(["one", "two"])
    expect(answer.locator(".figures")).to_contain_text("4 tokens")
    drafts = "67 % of 3 drafted tokens accepted · 3.00 tokens per step"
    expect(answer.locator(".figures")).to_contain_text(drafts)
    expect(visit.questions).to_have_text(["Say something bold"])
    assert visit.chats == ["Say something bold"]
    assert visit.bodies[0]["messages"] == [{"role": "user", "content": "Say something bold"}]


@pytest.mark.slow
def test_the_model_is_named(visit: Visit) -> None:
    expect(visit.page.get_by_role("heading", level=1)).to_have_text("Chat with test-model")
    expect(visit.page).to_have_title("test-model – PowerInfer")


@pytest.mark.slow
def test_an_answer_grows_while_it_is_written(visit: Visit, server: PageServer) -> None:
    server.play(WORDS[:80], step_s=0.02)
    visit.message.fill("Write a lot")
    visit.button("Send").click()
    expect(visit.answers).to_contain_text("word3")
    assert "word79" not in visit.answers.inner_text()
    expect(visit.answers).to_have_attribute("aria-busy", "true")
    expect(visit.button("Send")).to_be_hidden()
    expect(visit.answers).to_contain_text("word79")
    expect(visit.button("Stop")).to_be_hidden()


# An edit below brings along what stands before it.
@pytest.mark.thorough
def test_later_questions_bring_the_chat_along(visit: Visit) -> None:
    visit.ask("One?")
    visit.ask("Two?")
    assert visit.bodies[1]["messages"] == [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "Two?"},
    ]


@pytest.mark.slow
def test_nothing_is_sent_when_nothing_is_written(visit: Visit) -> None:
    expect(visit.button("Send")).to_be_disabled()
    visit.message.fill("  \n ")
    expect(visit.button("Send")).to_be_disabled()
    visit.message.press("Enter")
    assert visit.bodies == []


@pytest.mark.slow
def test_stop_ends_the_answer_and_keeps_it(visit: Visit, server: PageServer) -> None:
    server.play(WORDS, step_s=0.05)
    visit.message.fill("Write a lot")
    visit.message.press("Enter")
    expect(visit.answers).to_contain_text("word2")
    visit.button("Stop").click()
    expect(visit.answers).to_contain_text("You stopped this answer.")
    expect(visit.answers).to_contain_text("word2")
    expect(visit.message).to_be_focused()
    # The server hears of it, too.
    for _ in range(200):
        if server.fake.submitted[-1].is_cancelled:
            break
        visit.page.wait_for_timeout(50)
    assert server.fake.submitted[-1].is_cancelled
    server.play(("Fine.",))
    expect(visit.ask("And now?")).to_contain_text("Fine.")


@pytest.mark.slow
def test_regenerate_replaces_the_last_answer(visit: Visit, server: PageServer) -> None:
    visit.ask("One?")
    visit.ask("Two?")
    server.play(("Another",))
    expect(visit.button("Regenerate")).to_have_count(1)
    visit.button("Regenerate").click()
    expect(visit.answers.last).to_contain_text("Another")
    expect(visit.answers).to_have_count(2)
    assert visit.bodies[2]["messages"] == visit.bodies[1]["messages"]


@pytest.mark.slow
def test_edit_cuts_the_chat_there_and_asks_again(visit: Visit, server: PageServer) -> None:
    for question in ("One?", "Two?", "Three?"):
        visit.ask(question)
    visit.message.fill("not sent yet")
    server.play(("Changed",))
    visit.button("Edit").nth(1).click()
    expect(visit.message).to_have_value("Two?")
    visit.message.fill("Deux ?")
    visit.button("Send").click()
    expect(visit.answers).to_have_count(2)
    expect(visit.answers.last).to_contain_text("Changed")
    expect(visit.questions).to_have_text(["One?", "Deux ?"])
    expect(visit.message).to_have_value("not sent yet")
    assert [each["content"] for each in visit.bodies[-1]["messages"]] == [
        "One?",
        "Hello there.",
        "Deux ?",
    ]


@pytest.mark.slow
def test_an_edit_can_be_cancelled(visit: Visit) -> None:
    visit.ask("One?")
    visit.message.fill("not sent yet")
    visit.button("Edit").click()
    expect(visit.message).to_have_value("One?")
    visit.button("Cancel").click()
    expect(visit.message).to_have_value("not sent yet")
    visit.button("Edit").click()
    visit.message.press("Escape")
    expect(visit.message).to_have_value("not sent yet")
    expect(visit.answers).to_have_count(1)


@pytest.mark.slow
def test_code_is_coloured_and_copied(visit: Visit, server: PageServer) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    server.play(("Look:\n\n```py", "thon\ndef f(x):\n", "    return x\n", "```\n"))
    answer = visit.ask("Code?")
    expect(answer.locator(".hljs-keyword")).to_have_text(["def", "return"])
    expect(answer.locator(".code-head")).to_contain_text("python")
    visit.button("Copy code").click()
    assert visit.page.evaluate("navigator.clipboard.readText()") == "def f(x):\n    return x\n"
    visit.button("Copy").last.click()
    assert visit.page.evaluate("navigator.clipboard.readText()").startswith("Look:\n\n```python")


@pytest.mark.slow
def test_thoughts_are_folded(visit: Visit) -> None:
    events = "".join(
        f'data: {{"choices":[{{"delta":{{{delta}}},"finish_reason":{end}}}]}}\n\n'
        for delta, end in (
            ('"reasoning_content":"Let me **think**."', "null"),
            ('"content":"Done."', '"stop"'),
        )
    )
    visit.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(
            headers={"Content-Type": "text/event-stream"}, body=f"{events}data: [DONE]\n\n"
        ),
    )
    answer = visit.ask("Think!")
    thoughts = answer.get_by_text("Let me think.")
    expect(thoughts).to_have_count(0)
    answer.get_by_text("Thoughts").click()
    expect(thoughts).to_be_visible()
    expect(answer.locator("details strong")).to_have_text("think")


@pytest.mark.slow
def test_an_answer_cut_by_its_limit_says_so(visit: Visit, server: PageServer) -> None:
    server.play(WORDS)
    visit.button("Settings").click()
    visit.page.get_by_label("Longest answer").fill("5")
    answer = visit.ask("Write a lot")
    expect(answer).to_contain_text("limit of its length")
    expect(answer.locator(".markdown")).to_have_text("word0 word1 word2 word3 word4")
