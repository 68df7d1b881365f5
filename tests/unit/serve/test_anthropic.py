"""`/v1/messages` with an engine that plays a script."""

import json
from contextlib import AbstractContextManager
from typing import Any

import pytest

from api_client import Api, running_api
from chat_tokenizers import chat_tokenizer
from fake_engine import FakeEngine, Script
from powerinfer.errors import NumericsError
from powerinfer.serve.anthropic import answer

HELLO: dict[str, Any] = {
    "model": "test-model",
    "max_tokens": 100,
    "messages": [{"role": "user", "content": "Hi"}],
}
QWEN = chat_tokenizer("Qwen-Qwen3-0.6B")
CLOCK = {"name": "clock", "description": "Tells the time", "input_schema": {"type": "object"}}
CALL = ("I look.\n", "<tool_call>", '{"name": "clock", "argu', 'ments": {"zone"', ': "CET"}}')


def running(script: Script = ("Hello", ",", " world", "!")) -> AbstractContextManager[Api]:
    """A server of a model with a template, and room for its prompts."""
    return running_api(tokenizer=QWEN, fake=FakeEngine(script, context_length=8192))


def post(api: Api, path: str = "/v1/messages", **fields: Any) -> Any:
    answer = api.post(path, json={**HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(api: Api, **fields: Any) -> list[tuple[str, Any]]:
    answer = api.post("/v1/messages", json={**HELLO, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for part in answer.text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found


def prompt_of(api: Api) -> str:
    """The prompt of the last request, as text."""
    ids = api.fake.submitted[-1].request.prompt_ids
    return api.model.tokenizer.decode(ids, skip_special=False)


def refused(api: Api, **fields: Any) -> str:
    answer = api.post("/v1/messages", json={**HELLO, **fields})
    assert answer.status_code == 400, answer.text
    body = answer.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    return str(body["error"]["message"])


def test_a_whole_answer() -> None:
    with running_api() as api:
        api.fake.num_cached = 2
        answer = post(api, temperature=0.5, top_k=7, top_p=0.5, stop_sequences=["x"])
        request = api.fake.submitted[0].request
    assert answer.pop("id").startswith("msg_")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "test-model",
        "content": [{"type": "text", "text": "Hello, world!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len(request.prompt_ids) - 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 4,
        },
    }
    params = request.params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 7, 0.5)
    assert (params.max_tokens, params.n) == (100, 1)


def test_a_stream() -> None:
    with running_api() as api:
        found = stream(api)
    names = [name for name, _ in found]
    assert names == [
        *("message_start", "ping", "content_block_start"),
        *["content_block_delta"] * 4,
        *("content_block_stop", "message_delta", "message_stop"),
    ]
    start = found[0][1]["message"]
    assert (start["content"], start["stop_reason"]) == ([], None)
    deltas = [data["delta"] for name, data in found if name == "content_block_delta"]
    assert "".join(delta["text"] for delta in deltas) == "Hello, world!"
    assert found[-2][1]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2][1]["usage"]["output_tokens"] == 4


def test_why_an_answer_ended() -> None:
    with running_api() as api:
        cut = post(api, max_tokens=2)
        assert (cut["stop_reason"], cut["content"][0]["text"]) == ("max_tokens", "Hello,")
        stopped = post(api, stop_sequences=["wor"])
        assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", "wor")
        assert stopped["content"][0]["text"] == "Hello, "
    # A stop string that the server adds is nothing that the client asked for.
    with running_api(("Hi", "\nUser:", "x")) as api:
        assert post(api)["stop_reason"] == "end_turn"


def test_a_tool_is_used() -> None:
    with running(CALL) as api:
        answer = post(api, tools=[CLOCK])
        assert '"name": "clock"' in prompt_of(api)
        events = stream(api, tools=[CLOCK])
    text, use = answer["content"]
    assert text == {"type": "text", "text": "I look."}
    assert use["id"]
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "clock", {"zone": "CET"})
    assert answer["stop_reason"] == "tool_use"
    blocks = [data["content_block"] for name, data in events if name == "content_block_start"]
    assert [block["type"] for block in blocks] == ["text", "tool_use"]
    assert blocks[1]["input"] == {}
    deltas = [data["delta"] for name, data in events if name == "content_block_delta"]
    written = [delta["partial_json"] for delta in deltas if delta["type"] == "input_json_delta"]
    assert len(written) > 1
    assert json.loads("".join(written)) == {"zone": "CET"}
    indexes = [data["index"] for name, data in events if name.startswith("content_block")]
    assert indexes == sorted(indexes)


def test_a_call_that_is_cut_off() -> None:
    with running(CALL[:-1]) as api:
        assert post(api, tools=[CLOCK])["content"][1]["input"] == {}


def test_thoughts_are_a_block() -> None:
    script = ("<think>\nHm", "m.\n</think>\n\n", "Yes.")
    with running(script) as api:
        answer = post(api)
        events = stream(api)
    assert answer["content"] == [
        {"type": "thinking", "thinking": "Hmm.", "signature": ""},
        {"type": "text", "text": "Yes."},
    ]
    deltas = [data["delta"]["type"] for name, data in events if name == "content_block_delta"]
    assert deltas == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "tool", "name": "clock"}, "<tool_call>\n"),
        ({"type": "any"}, "<tool_call>\n"),
        ({"type": "auto"}, None),
        ({"type": "none"}, None),
    ],
)
def test_tool_choice(choice: dict[str, str], expected: str | None) -> None:
    script = ('{"name":"clock",', '"arguments":{}}')
    with running(script) as api:
        answer = post(api, tools=[CLOCK], tool_choice=choice)
        prompt, params = prompt_of(api), api.fake.submitted[0].request.params
    assert ("clock" in prompt) is (choice["type"] != "none")
    assert prompt.endswith(expected or "assistant\n")
    assert params.has_form is (expected is not None)
    kinds = [block["type"] for block in answer["content"]]
    assert kinds == (["text"] if expected is None else ["tool_use"])
    assert answer["stop_reason"] == ("end_turn" if expected is None else "tool_use")


def test_only_one_call_where_more_are_unwelcome() -> None:
    call = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    with running((call, call)) as api:
        assert len(post(api, tools=[CLOCK])["content"]) == 2
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        assert len(post(api, tools=[CLOCK], tool_choice=choice)["content"]) == 1


def test_a_conversation_with_tools_reaches_the_template() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Time?", "cache_control": {}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "CET"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "noon"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [{"type": "text", "text": "late"}],
                    "is_error": True,
                },
                {"type": "tool_result", "tool_use_id": "t1"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    with running() as api:
        system = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
        post(api, messages=messages, tools=[CLOCK], system=system)
        prompt = prompt_of(api)
    assert "<|im_start|>system\nBe brief." in prompt
    assert '{"name": "clock", "arguments": {"zone": "CET"}}' in prompt
    assert "<tool_response>\nnoon\n</tool_response>" in prompt
    assert "<tool_response>\nError: late\n</tool_response>" in prompt
    assert prompt.endswith("So?<|im_end|>\n<|im_start|>assistant\n")


def test_an_answer_that_is_begun_is_gone_on_with() -> None:
    begun = [*HELLO["messages"], {"role": "assistant", "content": "Sure: "}]
    with running() as api:
        answer = post(api, messages=begun)
        assert prompt_of(api).endswith("<|im_start|>assistant\nSure:")
    assert answer["content"][0]["text"] == "Hello, world!"


def test_thinking_and_form_of_the_answer() -> None:
    schema = {"type": "object"}
    form = {"format": {"type": "json_schema", "schema": schema}}
    with running() as api:
        post(api, thinking={"type": "disabled"})
        assert "<think>\n\n</think>" in prompt_of(api)
        post(api, output_config=form)
        assert json.loads(str(api.fake.submitted[-1].request.params.json_schema)) == schema


def test_tokens_are_counted() -> None:
    with running() as api:
        post(api, tools=[CLOCK])
        fields = {name: HELLO[name] for name in ("model", "messages")}
        answer = api.post("/v1/messages/count_tokens", json={**fields, "tools": [CLOCK]})
        assert answer.json() == {"input_tokens": len(api.fake.submitted[0].request.prompt_ids)}
        bad = api.post("/v1/messages/count_tokens", json={})
        assert bad.status_code == 400
        assert bad.json()["type"] == "error"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"model": None}, "model is missing"),
        ({"messages": []}, "messages is empty"),
        ({"messages": "Hi"}, "messages must be a list"),
        ({"messages": [{"content": "Hi"}]}, r"messages[0].role is missing"),
        ({"messages": [{"role": "poet", "content": "Hi"}]}, "messages[0].role must be one of"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content must be a text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "must be text or"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "text is missing"),
        ({"messages": [{"role": "assistant", "content": [{"type": "x"}]}]}, "must be text, think"),
        ({"system": [{"type": "image"}]}, "system[0].type must be text"),
        ({"temperature": 1.5}, "temperature must be at most 1"),
        ({"stop_sequences": [""]}, "stop_sequences must be a list of texts"),
        ({"stop_sequences": ["a"] * 65}, "stop_sequences must be at most 64"),
        ({"tools": [{"type": "web_search_20250305", "name": "a"}]}, "tools[0].type must be custom"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name must be letters"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
        ({"tools": [CLOCK, CLOCK]}, "there are two tools 'clock'"),
        ({"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "x"}}, "must be one of clock"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"thinking": {"type": "maybe"}}, "thinking.type must be one of"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
        (
            {
                "tools": [CLOCK],
                "tool_choice": {"type": "any"},
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
            },
            "give one of them",
        ),
    ],
)
def test_what_is_refused(fields: dict[str, Any], message: str) -> None:
    with running_api() as api:
        assert message in refused(api, **fields)


def test_fields_that_only_openai_has_are_ignored() -> None:
    with running() as api:
        assert post(api, n=3, stop=["Hello"])["stop_reason"] == "end_turn"


def test_errors_have_the_shape_of_this_api() -> None:
    with running_api() as api:
        unknown = api.post("/v1/messages", json={**HELLO, "model": "claude"})
        assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
        assert api.get("/v1/messages").json()["type"] == "error"
        # Elsewhere it is OpenAI's.
        assert "type" not in api.get("/v1/nothing").json()
    with running_api(is_loading=True) as api:
        loading = api.post("/v1/messages", json=HELLO)
        assert (loading.status_code, loading.json()["error"]["type"]) == (503, "overloaded_error")


def test_a_failure_in_a_stream_is_an_event() -> None:
    with running_api(("Hello", NumericsError("NaN"))) as api:
        name, data = stream(api)[-1]
        assert name == "error"
        assert data["error"]["type"] == "api_error"
        assert api.post("/v1/messages", json=HELLO).status_code == 500


def test_pings_fill_a_long_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine goes on when three pings were sent, however long that takes."""
    monkeypatch.setattr("powerinfer.serve.anthropic.answer._PING_S", 0.01)
    fake, sent, send = FakeEngine(), list[str](), answer._send

    async def counting(reply: Any, name: str, values: Any) -> None:
        sent.append(name)
        if sent.count("ping") > 3:
            fake.gate.set()
        await send(reply, name, values)

    monkeypatch.setattr(answer, "_send", counting)
    fake.gate.clear()
    with running_api(fake=fake) as api:
        names = [name for name, _ in stream(api)]
    assert names.count("ping") > 2
    assert names[-1] == "message_stop"
