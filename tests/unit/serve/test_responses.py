"""`/v1/responses` with an engine that plays a script."""

import json
from contextlib import AbstractContextManager
from typing import Any

import pytest

from api_client import Api, events, running_api
from chat_tokenizers import chat_tokenizer
from fake_engine import FakeEngine, Script
from powerinfer.errors import NumericsError
from powerinfer.serve.errors import ApiError
from powerinfer.serve.responses.store import ResponseStore, StoredResponse

QWEN = chat_tokenizer("Qwen-Qwen3-0.6B")
CLOCK = {
    "type": "function",
    "name": "clock",
    "description": "Tells the time",
    "parameters": {"type": "object"},
}
CALL = ("I look.\n", "<tool_call>", '{"name": "clock", "argu', 'ments": {"zone"', ': "CET"}}')
TEXT_EVENTS = ("content_part.added", "output_text.delta", "output_text.done", "content_part.done")


def running(script: Script = ("Hello", ",", " world", "!")) -> AbstractContextManager[Api]:
    """A server of a model with a template, and room for its prompts."""
    return running_api(tokenizer=QWEN, fake=FakeEngine(script, context_length=8192))


def respond(api: Api, given: Any = "Hi", **fields: Any) -> Any:
    answer = api.post("/v1/responses", json={"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stream(api: Api, given: Any = "Hi", **fields: Any) -> list[tuple[str, Any]]:
    """Events of an answer by their types, without `response.`."""
    answer = api.post("/v1/responses", json={"input": given, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    found = [json.loads(each) for each in events(answer.text)]
    names = [line for line in answer.text.split("\n") if line.startswith("event: ")]
    assert names == [f"event: {each['type']}" for each in found]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    return [(each["type"].removeprefix("response."), each) for each in found]


def prompt_of(api: Api) -> str:
    """The prompt of the last request, as text."""
    ids = api.fake.submitted[-1].request.prompt_ids
    return api.model.tokenizer.decode(ids, skip_special=False)


def test_a_whole_response() -> None:
    with running_api() as api:
        api.fake.num_cached = 2
        fields = {"temperature": 0.5, "top_p": 0.5, "max_output_tokens": 9, "metadata": {"a": "b"}}
        answer = respond(api, instructions="Be brief.", user="u", **fields)
        request = api.fake.submitted[0].request
    assert answer.pop("id").startswith("resp_")
    assert answer.pop("created_at") <= answer.pop("completed_at")
    (item,) = answer.pop("output")
    assert item.pop("id").startswith("msg_")
    text = {"type": "output_text", "text": "Hello, world!", "annotations": [], "logprobs": []}
    assert item == {
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [text],
    }
    num_prompt = len(request.prompt_ids)
    assert answer.pop("usage") == {
        "input_tokens": num_prompt,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_prompt + 4,
    }
    assert answer == {
        "object": "response",
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "model": "test-model",
        "previous_response_id": None,
        "instructions": "Be brief.",
        "reasoning": {"effort": None, "summary": None},
        "store": True,
        "text": {"format": {"type": "text"}},
        "tools": [],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "background": False,
        "truncation": "disabled",
        "user": "u",
        **fields,
    }
    params = request.params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.5, 9)


def test_a_stream() -> None:
    with running() as api:
        found = stream(api)
    assert [name for name, _ in found] == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *["output_text.delta"] * 4,
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]
    by_name = dict(found)
    begun = by_name["created"]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    added = by_name["output_item.added"]
    assert (added["output_index"], added["item"]["status"]) == (0, "in_progress")
    assert added["item"]["content"] == []
    assert by_name["content_part.added"]["part"]["text"] == ""
    for name in TEXT_EVENTS:
        event = by_name[name]
        assert (event["item_id"], event["output_index"]) == (added["item"]["id"], 0)
        assert event["content_index"] == 0
        assert event.get("logprobs", []) == []
    text = "".join(event["delta"] for name, event in found if name == "output_text.delta")
    assert text == by_name["output_text.done"]["text"] == "Hello, world!"
    response = by_name["completed"]["response"]
    assert response["id"] == begun["id"]
    assert response["output"] == [by_name["output_item.done"]["item"]]
    assert response["output"][0]["content"] == [by_name["content_part.done"]["part"]]
    assert response["usage"]["output_tokens"] == 4


def test_a_response_that_a_limit_cuts() -> None:
    with running() as api:
        whole = respond(api, max_output_tokens=2)
        found = stream(api, max_output_tokens=2)
    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert whole["output"][0]["status"] == "incomplete"
    assert whole["output"][0]["content"][0]["text"] == "Hello,"
    name, last = found[-1]
    assert (name, last["response"]["status"]) == ("incomplete", "incomplete")


def test_an_answer_without_text_is_an_empty_message() -> None:
    with running([]) as api:
        (item,) = respond(api)["output"]
        names = [name for name, _ in stream(api)]
    assert item["content"][0]["text"] == ""
    assert names[2:-1] == [
        *("output_item.added", "content_part.added"),
        *("output_text.done", "content_part.done", "output_item.done"),
    ]


def test_a_tool_is_called() -> None:
    with running(CALL) as api:
        answer = respond(api, tools=[CLOCK])
        assert '"name": "clock"' in prompt_of(api)
        found = stream(api, tools=[CLOCK])
    said, call = answer["output"]
    assert said["content"][0]["text"].strip() == "I look."
    assert (call["type"], call["name"], call["status"]) == ("function_call", "clock", "completed")
    assert json.loads(call["arguments"]) == {"zone": "CET"}
    assert answer["tools"] == [{"strict": None, **CLOCK}]
    of_call = [(name, event) for name, event in found if event.get("output_index") == 1]
    names = [name for name, _ in of_call]
    assert names[0] == "output_item.added"
    assert set(names[1:-2]) == {"function_call_arguments.delta"}
    assert names[-2:] == ["function_call_arguments.done", "output_item.done"]
    assert of_call[0][1]["item"]["arguments"] == ""
    deltas = [event["delta"] for name, event in of_call if name.endswith("delta")]
    assert "".join(deltas) == of_call[-2][1]["arguments"] == call["arguments"]
    assert of_call[-2][1]["name"] == "clock"
    assert of_call[-1][1]["item"]["call_id"].startswith("call_")


@pytest.mark.parametrize(
    ("choice", "form"),
    [
        ("required", True),
        ({"type": "function", "name": "clock"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [CLOCK]}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [CLOCK]}, False),
        ("auto", False),
    ],
)
def test_choices_of_tools(choice: Any, form: bool) -> None:
    with running() as api:
        respond(api, tools=[CLOCK, CLOCK | {"name": "other"}], tool_choice=choice)
        request = api.fake.submitted[-1].request
        assert request.params.has_form == form
        has_other = '"name": "other"' in prompt_of(api)
        respond(api, tools=[CLOCK], tool_choice="none")
        assert "clock" not in prompt_of(api)
    assert has_other == (not isinstance(choice, dict) or choice["type"] == "function")


def test_reasoning_is_an_item() -> None:
    with running(("<think>", "Hm", "m", "</think>", "\n\nYes")) as api:
        answer = respond(api)
        found = stream(api)
    thought, said = answer["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hmm"}]
    assert (thought["type"], thought["summary"], said["type"]) == ("reasoning", [], "message")
    assert said["content"][0]["text"] == "Yes"
    assert 0 < answer["usage"]["output_tokens_details"]["reasoning_tokens"] < 5
    names = [name for name, event in found if event.get("output_index") == 0]
    assert names == [
        *("output_item.added", "content_part.added"),
        *["reasoning_text.delta"] * 2,
        *("reasoning_text.done", "content_part.done", "output_item.done"),
    ]


def test_items_become_messages() -> None:
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Short."}]},
        {"role": "user", "content": "When?"},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "So"}],
        },
        {"type": "function_call", "call_id": "c", "name": "clock", "arguments": '{"zone": "CET"}'},
        {"type": "function_call_output", "call_id": "c", "output": "noon"},
    ]
    with running() as api:
        respond(api, items, instructions="Be kind.")
        prompt = prompt_of(api)
    assert prompt.startswith("<|im_start|>system\nBe kind.\n\nShort.<|im_end|>")
    assert prompt.count("<|im_start|>system") == 1
    said = prompt.partition("<|im_start|>assistant")[2].partition("<|im_end|>")[0]
    assert said.index("Hm") < said.index("So") < said.index('"zone": "CET"')
    assert "<tool_response>\nnoon\n</tool_response>" in prompt


def test_a_form_of_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    with running() as api:
        answer = respond(api, text={"format": form})
        assert api.fake.submitted[-1].request.params.json_schema == json.dumps(
            schema, separators=(",", ":")
        )
        assert answer["text"]["format"] == form
        respond(api, text={"format": {"type": "json_object"}})
        assert api.fake.submitted[-1].request.params.json_schema == '{"type":"object"}'


def test_a_response_follows_another() -> None:
    with running() as api:
        first = respond(api, "Hi", instructions="Be kind.")
        second = respond(api, "And?", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
        prompt = prompt_of(api)
        assert "Be kind." not in prompt
        third = stream(api, "So?", previous_response_id=second["id"])[-1][1]["response"]
        whole = prompt_of(api)
        respond(api, "Yes", previous_response_id=third["id"])
    said = ["user\nHi", "assistant\nHello, world!", "user\nAnd?", "assistant\n"]
    turns = [each.removeprefix("<|im_start|>") for each in prompt.split("<|im_end|>\n")]
    assert turns[:3] == said[:3]
    assert whole.count("Hello, world!") == 2


def test_stored_responses() -> None:
    with running() as api:
        made = respond(api)
        path = f"/v1/responses/{made['id']}"
        assert api.get(path).json() == made
        assert api.get(path, params={"stream": "true"}).json()["error"]["param"] == "stream"
        deleted = api.delete(path)
        assert deleted.json() == {"id": made["id"], "object": "response", "deleted": True}
        for answer in (api.get(path), api.delete(path)):
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "response_not_found"
        hidden = respond(api, store=False)
        assert api.get(f"/v1/responses/{hidden['id']}").status_code == 404
        refused = api.post("/v1/responses", json={"input": "a", "previous_response_id": made["id"]})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert (error["param"], error["code"]) == (
        "previous_response_id",
        "previous_response_not_found",
    )


def stored(num_bytes: int) -> StoredResponse:
    return StoredResponse(response={}, items=(), output=(), num_bytes=num_bytes)


def test_the_store_is_bounded() -> None:
    store = ResponseStore(max_responses=3, max_bytes=100)
    for name in "abcd":
        store.put(name, stored(10))
    with pytest.raises(ApiError, match="'a'"):
        store.get("a")
    store.put("e", stored(85))
    assert store.get("d")
    for name in ("b", "c"):
        with pytest.raises(ApiError):
            store.get(name)
    store.delete("d")
    store.put("f", stored(15))
    assert store.get("e")
    assert store.get("f")
    store.put("g", stored(101))
    for name in ("e", "f", "g"):
        with pytest.raises(ApiError):
            store.get(name)
    store.put("h", stored(100))
    assert store.get("h")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["a"]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0].type",
        ),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": "long " * 10_000}, "input"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "required"}}, "tool_choice.tools"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"n": 2}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"store": "no"}, "store"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with running() as api:
        answer = api.post("/v1/responses", json={"input": "Hi", **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param


def test_what_changes_nothing_is_taken() -> None:
    with running() as api:
        respond(
            api,
            include=["reasoning.encrypted_content"],
            reasoning={"effort": "low", "summary": "auto"},
            text={"verbosity": "medium"},
            service_tier="auto",
            prompt_cache_key="x",
            safety_identifier="y",
            background=False,
            top_logprobs=0,
            truncation="disabled",
        )


def test_an_error_within_a_stream() -> None:
    with running(["Hello", NumericsError("NaN in the logits")]) as api:
        answer = api.post("/v1/responses", json={"input": "Hi", "stream": True})
        assert api.post("/v1/responses", json={"input": "Hi"}).status_code == 500
    *_, failed, last = [json.loads(each) for each in events(answer.text)]
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["message"] == "NaN in the logits"
    assert last["error"]["message"] == "NaN in the logits"
    assert answer.text.split("\n\n")[-2].startswith("event: error\n")
