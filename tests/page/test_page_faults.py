"""What the page says when something goes wrong, and that the next try works."""

import json

import pytest

from fake_engine import NAN
from page_server import PageServer, page_server
from page_visit import Route, Visit, Visitor, expect

# Each visit takes a second.
pytestmark = pytest.mark.slow

CHAT = "**/v1/chat/completions"


def _refuse(visit: Visit, status: int, code: str, message: str, **headers: str) -> None:
    def refuse(route: Route) -> None:
        body = json.dumps({"error": {"message": message, "code": code}})
        route.fulfill(status=status, body=body, content_type="application/json", headers=headers)

    visit.expected.append(f"status of {status}")
    visit.page.route(CHAT, refuse)


@pytest.mark.parametrize(
    ("status", "code", "headers", "words"),
    [
        (429, "queue_full", {"Retry-After": "7"}, ("The server is busy", "in 7 s")),
        pytest.param(
            *(503, "loading", {}, ("The server is not ready", "from the server")),
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            *(500, "", {}, ("refused the request", "from the server")), marks=pytest.mark.thorough
        ),
        (400, "context_length_exceeded", {}, ("longer than the model can read", "new chat")),
    ],
)
def test_a_refusal_is_told_and_retried(
    visit: Visit, status: int, code: str, headers: dict[str, str], words: tuple[str, ...]
) -> None:
    _refuse(visit, status, code, "Words from the server.", **headers)
    answer = visit.ask("One?")
    for word in words:
        expect(answer).to_contain_text(word)
    visit.page.unroute(CHAT)
    visit.button("Retry").click()
    expect(visit.answers).to_contain_text("Hello there.")
    expect(visit.answers).to_have_count(1)
    assert visit.bodies[0] == visit.bodies[1]


def test_a_chat_that_fills_the_context_can_be_left(visit: Visit) -> None:
    _refuse(visit, 400, "context_length_exceeded", "Too long.")
    visit.ask("One?")
    visit.button("Start a new chat").click()
    expect(visit.answers).to_have_count(0)
    expect(visit.message).to_be_focused()


def test_no_server(visit: Visit) -> None:
    visit.expected.append("ERR_")
    visit.page.route(CHAT, lambda route: route.abort("connectionrefused"))
    expect(visit.ask("One?")).to_contain_text("The connection was lost")
    visit.page.unroute(CHAT)
    visit.button("Retry").click()
    expect(visit.answers).to_contain_text("Hello there.")


@pytest.mark.parametrize(
    "end",
    [
        pytest.param("", marks=pytest.mark.thorough),
        'data: {"choices":[{"del',
        pytest.param("data: {}\n\n", marks=pytest.mark.thorough),
    ],
)
def test_an_answer_that_breaks_off(visit: Visit, end: str) -> None:
    begin = 'data: {"choices":[{"delta":{"content":"Half an"}}]}\n\n'
    visit.page.route(CHAT, lambda route: route.fulfill(body=begin + end))
    answer = visit.ask("One?")
    expect(answer).to_contain_text("Half an")
    expect(answer).to_contain_text("The connection was lost")
    expect(visit.button("Retry")).to_be_visible()


def test_an_error_within_an_answer(visit: Visit, server: PageServer) -> None:
    server.play(("Some ", "words ", NAN))
    answer = visit.ask("One?")
    expect(answer).to_contain_text("Some words")
    expect(answer).to_contain_text("NaN in the logits")
    server.play(("Whole.",))
    visit.button("Retry").click()
    expect(visit.answers).to_contain_text("Whole.")


def test_a_retry_is_offered_for_the_last_answer_only(visit: Visit) -> None:
    _refuse(visit, 503, "loading", "Not yet.")
    visit.ask("One?")
    visit.ask("Two?")
    expect(visit.answers).to_have_count(2)
    expect(visit.button("Retry")).to_have_count(1)


def test_a_server_that_needs_a_key(visitor: Visitor) -> None:
    with page_server(api_keys=("secret",)) as server, visitor(server.url) as visit:
        expect(visit.page.get_by_text("needs an API key")).to_be_visible()
        _refuse(visit, 401, "invalid_api_key", "Wrong key.")
        expect(visit.ask("One?")).to_contain_text("The server asks for an API key")
        visit.page.unroute(CHAT)
        visit.button("Open settings").click()
        key = visit.page.get_by_label("API key")
        expect(key).to_be_focused()
        key.fill("secret")
        key.press("Tab")
        expect(visit.page.get_by_role("heading", level=1)).to_contain_text("test-model")
        with visit.page.expect_request(CHAT) as asked:
            visit.button("Retry").click()
        assert asked.value.headers["authorization"] == "Bearer secret"
        expect(visit.answers).to_contain_text("Hello there.")
        assert "secret" not in visit.page.evaluate("JSON.stringify(localStorage)")
        visit.page.reload()
        visit.button("Settings").click()
        expect(visit.page.get_by_label("API key")).to_have_value("secret")


def test_a_model_that_is_loading_is_waited_for(visit: Visit) -> None:
    visit.expected.append("status of 503")
    visit.page.route("**/v1/models", lambda route: route.fulfill(status=503, body="{}"))
    visit.page.reload()
    expect(visit.page.get_by_text("loading", exact=True)).to_be_visible()
    visit.page.unroute("**/v1/models")
    expect(visit.page.get_by_role("heading", level=1)).to_contain_text("test-model")
    expect(visit.page.get_by_text("loading", exact=True)).to_be_hidden()
