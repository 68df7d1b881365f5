"""A server of a real model: a chat, an answer in JSON, a call of a tool."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from real_models import CHATS, MAX_TOKENS, Golden
from serving import Server, serving

pytestmark = pytest.mark.slow

CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "people": {"type": "integer"}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
CLOCK: Any = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "The time in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[Server]:
    with serving("-m", str(smollm2), "-t", "2", "-c", "1024") as running:
        yield running


def choice(server: Server, question: str, **fields: Any) -> Any:
    """The answer to a question."""
    messages = [{"role": "user", "content": question}]
    body = {"messages": messages, "temperature": 0, "max_tokens": 64, **fields}
    response = server.post("/v1/chat/completions", body)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def test_chat(server: Server, golden: Golden) -> None:
    for question in CHATS:
        answer = choice(server, question, max_tokens=MAX_TOKENS)
        assert answer["message"]["content"] == golden["texts"][question]["text"]


def test_json(server: Server) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    answer = choice(server, "Write Paris as JSON: city and people.", response_format=form)
    assert answer["finish_reason"] == "stop"
    found = json.loads(answer["message"]["content"])
    assert list(found) == ["city", "people"]
    assert "Paris" in found["city"]
    assert isinstance(found["people"], int)


def test_a_call_of_a_tool(server: Server) -> None:
    answer = choice(server, "What time is it in Rome?", tools=[CLOCK], tool_choice="required")
    assert answer["finish_reason"] == "tool_calls"
    (call,) = answer["message"]["tool_calls"]
    assert call["function"]["name"] == "clock"
    assert json.loads(call["function"]["arguments"]) == {"city": "Rome"}
