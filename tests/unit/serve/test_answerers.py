"""`/v1/chat/completions` of a name that stands for more than a model."""

import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import pytest

from api_client import Api, events, running_api
from powerinfer.serve.chat.answerer import TokenCounts
from powerinfer.serve.chat.deltas import ChatDelta
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.errors import ApiError

HELLO = {"model": "team", "messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Team:
    """Answers with a line of reasoning and two pieces; or fails after the first."""

    error: ApiError | None = None
    asked: list[Sequence[ChatMessage]] = field(default_factory=list)
    num_ended: int = 0

    async def answer(
        self, messages: Sequence[ChatMessage]
    ) -> AsyncGenerator[ChatDelta | TokenCounts, None]:
        self.asked.append(messages)
        try:
            yield ChatDelta(reasoning="plan\n")
            if self.error is not None:
                raise self.error
            yield ChatDelta(content="4")
            yield ChatDelta(content="2")
            yield TokenCounts(7, 3)
        finally:
            self.num_ended += 1


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def serve(api: Api, team: Team) -> None:
    api.context.answerers["team"] = team


def test_a_whole_answer() -> None:
    team = Team()
    with running_api() as api:
        serve(api, team)
        answer = api.post("/v1/chat/completions", json=HELLO).json()
        assert not api.fake.submitted
    (choice,) = answer["choices"]
    assert choice["message"]["content"] == "42"
    assert choice["message"]["reasoning_content"] == "plan\n"
    assert choice["finish_reason"] == "stop"
    assert (answer["model"], answer["usage"]) == ("team", USAGE)
    assert team.asked == [[{"role": "user", "content": "Hi"}]]


def test_a_stream() -> None:
    with running_api() as api:
        serve(api, Team())
        fields = {"stream": True, "stream_options": {"include_usage": True}}
        found = events(api.post("/v1/chat/completions", json={**HELLO, **fields}).text)
    assert found[-1] == "[DONE]"
    *chunks, usage = [json.loads(each) for each in found[:-1]]
    assert usage["usage"] == USAGE
    assert [each["choices"][0]["delta"] for each in chunks] == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "plan\n"},
        {"content": "4"},
        {"content": "2"},
        {},
    ]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_errors() -> None:
    team = Team(ApiError("it failed", status=500))
    with running_api() as api:
        serve(api, team)
        whole = api.post("/v1/chat/completions", json=HELLO)
        streamed = api.post("/v1/chat/completions", json={**HELLO, "stream": True})
    assert whole.status_code == 500
    assert whole.json()["error"]["message"] == "it failed"
    assert json.loads(events(streamed.text)[-1])["error"]["message"] == "it failed"
    assert team.num_ended == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_refusals(fields: dict[str, object], param: str) -> None:
    with running_api() as api:
        serve(api, Team())
        answer = api.post("/v1/chat/completions", json={**HELLO, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_it_is_listed_and_others_answer() -> None:
    with running_api() as api:
        serve(api, Team())
        listed = api.get("/v1/models").json()["data"]
        assert [each["id"] for each in listed] == ["team", "test-model"]
        assert api.get("/v1/models/team").json()["object"] == "model"
        body = {"messages": HELLO["messages"]}
        answer = api.post("/v1/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == "Hello, world!"
        api.context.drain()
        assert api.post("/v1/chat/completions", json=HELLO).status_code == 503
