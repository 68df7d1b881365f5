"""`/v1/chat/completions` with an engine that plays a script."""

import json
import re
from contextlib import nullcontext
from typing import Any

import pytest

from api_client import Api, events, running_api
from powerinfer.errors import NumericsError
from powerinfer.options.option_kinds import read_draft
from powerinfer.serve.openai.schemas import CHAT_BODY

HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


def chat(api: Api, **fields: Any) -> Any:
    answer = api.post("/v1/chat/completions", json={**HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(api: Api, **fields: Any) -> list[Any]:
    answer = api.post("/v1/chat/completions", json={**HELLO, "stream": True, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = events(answer.text)
    assert found[-1] == "[DONE]"
    return [json.loads(each) for each in found[:-1]]


def test_a_whole_answer() -> None:
    with running_api() as api:
        api.fake.num_cached = 3
        answer = chat(api)
        asked = api.fake.submitted[0].request
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "test-model"
    assert answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello, world!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    prompt = len(asked.prompt_ids)
    assert answer["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 4,
        "total_tokens": prompt + 4,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    # Without a limit, until the context is full; everything else as in `run`.
    assert asked.params.max_tokens is None
    assert (asked.params.temperature, asked.params.top_k, asked.params.min_p) == (0.8, 40, 0.05)


def test_the_schema_of_drafts_is_what_is_read() -> None:
    body: Any = CHAT_BODY["requestBody"]
    pattern = body["content"]["application/json"]["schema"]["properties"]["draft"]["pattern"]
    lengths = [f"ngram:{number}" for number in range(101)]
    for draft in ("off", "auto", "ngram", "eagle", "ngram:", "ngram:1\u0663", *lengths):
        is_described = re.search(pattern, draft) is not None
        with nullcontext() if is_described else pytest.raises(ValueError, match="auto, off"):
            read_draft(draft)


def test_drafts_are_asked_for_and_counted() -> None:
    with running_api() as api:
        api.fake.drafts = (7, 3)
        answer = chat(api, draft="NGRAM:5")
        assert api.fake.submitted[0].request.params.draft == "ngram:5"
        metrics = api.get("/metrics").text
        refused = api.post("/v1/chat/completions", json={**HELLO, "draft": "eagle"})
    assert answer["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 3,
        "rejected_prediction_tokens": 4,
    }
    assert "powerinfer_drafted_tokens_total 7.0" in metrics
    assert "powerinfer_accepted_draft_tokens_total 3.0" in metrics
    assert "powerinfer_decode_steps_total 0.0" in metrics
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "draft"
    assert "auto, off, ngram" in refused.json()["error"]["message"]


def test_a_stream() -> None:
    with running_api() as api:
        chunks = streamed(api, stream_options={"include_usage": True})
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    *pieces, usage = chunks
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 4
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [each["content"] for each in deltas[1:-1]] == ["Hello", ",", " world", "!"]
    assert deltas[-1] == {}
    assert [piece["choices"][0]["finish_reason"] for piece in pieces] == [None] * 5 + ["stop"]
    assert all(piece["usage"] is None for piece in pieces)


def test_a_stream_without_usage_says_nothing_of_it() -> None:
    with running_api() as api:
        assert all("usage" not in chunk for chunk in streamed(api))


def test_several_answers() -> None:
    with running_api(lambda _, index: [f"answer {index}", "."]) as api:
        answer = chat(api, n=3)
        chunks = streamed(api, n=3)
    assert [each["message"]["content"] for each in answer["choices"]] == [
        "answer 0.",
        "answer 1.",
        "answer 2.",
    ]
    texts = ["", "", ""]
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == ["answer 0.", "answer 1.", "answer 2."]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_limits(name: str) -> None:
    with running_api() as api:
        answer = chat(api, **{name: 2})
    assert answer["choices"][0]["message"]["content"] == "Hello,"
    assert answer["choices"][0]["finish_reason"] == "length"


def test_stop_strings_are_left_out() -> None:
    with running_api() as api:
        answer = chat(api, stop=["wor"])
    assert answer["choices"][0]["message"]["content"] == "Hello, "
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_logprobs() -> None:
    with running_api() as api:
        answer = chat(api, logprobs=True, top_logprobs=2, max_tokens=2)
        chunks = streamed(api, logprobs=True, max_tokens=2)
    content = answer["choices"][0]["logprobs"]["content"]
    assert [each["id"] for each in content] == [300, 301]
    assert content[0]["logprob"] == -0.5
    assert [each["logprob"] for each in content[0]["top_logprobs"]] == [-0.5, -1.5]
    assert bytes(content[0]["bytes"]).decode() == content[0]["token"]
    reported = [
        each["id"]
        for chunk in chunks
        if chunk["choices"][0]["logprobs"]
        for each in chunk["choices"][0]["logprobs"]["content"]
    ]
    assert reported == [300, 301]


def test_logprobs_of_text_that_is_held_back_are_not_lost() -> None:
    with running_api(["a", "b", "c"]) as api:
        chunks = streamed(api, logprobs=True, stop=["abcd"])
    reported = [
        entry["id"]
        for chunk in chunks
        for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert reported == [300, 301, 302]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "abc"


def test_an_error_of_the_engine_before_and_in_a_stream() -> None:
    with running_api(["Hel", NumericsError("NaN in layer 3")]) as api:
        whole = api.post("/v1/chat/completions", json=HELLO)
        stream = api.post("/v1/chat/completions", json={**HELLO, "stream": True})
    assert whole.status_code == 500
    assert whole.json()["error"]["message"] == "NaN in layer 3"
    assert stream.status_code == 200
    last = json.loads(events(stream.text)[-1])
    assert last["error"]["type"] == "server_error"
    assert "NaN" in last["error"]["message"]


def test_a_step_that_fails_ends_its_requests_only() -> None:
    with running_api() as api:
        api.fake.step_error = RuntimeError("secret")
        answer = api.post("/v1/chat/completions", json=HELLO)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert chat(api)["choices"][0]["message"]["content"] == "Hello, world!"


def test_roles_parts_and_calls_reach_the_prompt() -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    ]
    with running_api() as api:
        chat(api, messages=messages)
        tokenizer = api.model.tokenizer
        text = tokenizer.decode(api.fake.submitted[0].request.prompt_ids)
    assert "Be brief." in text
    assert "User: ab" in text
    assert text.endswith("Assistant:")


def test_too_long_for_the_context() -> None:
    with running_api() as api:
        messages = [{"role": "user", "content": "word " * 600}]
        answer = api.post("/v1/chat/completions", json={"messages": messages})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert "the context holds 512" in error["message"]
    assert "tools" not in error["message"]


def test_too_long_for_the_context_by_its_tools() -> None:
    tools = [
        {"type": "function", "function": {"name": f"get_{i}", "description": "word " * 60}}
        for i in range(9)
    ]
    with running_api() as api:
        messages = [{"role": "user", "content": "Hi"}]
        answer = api.post("/v1/chat/completions", json={"messages": messages, "tools": tools})
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert message.endswith("the context holds 512; 9 tools are part of the prompt")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "missing_required_parameter"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": "hi"}, "messages", "invalid_type"),
        ({"messages": ["hi"]}, "messages[0]", "invalid_type"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "invalid_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
            "unsupported_content_type",
        ),
        ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": True}, "temperature", "invalid_type"),
        ({"top_p": -0.1}, "top_p", "decimal_below_min_value"),
        ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value"),
        ({"n": 0}, "n", "integer_below_min_value"),
        ({"n": 129}, "n", "integer_above_max_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": 10**30}, "max_tokens", "integer_above_max_value"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "array_above_max_length"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"stop": 3}, "stop", "invalid_type"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1", "decimal_above_max_value"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value"),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "invalid_value"),
        ({"stream": "yes"}, "stream", "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"audio": {"voice": "x"}}, "audio", "unsupported_parameter"),
        ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
        (
            {"web_search_options": {"search_context_size": "low"}},
            "web_search_options",
            "unsupported_parameter",
        ),
        ({"reasoning_effort": "foo"}, "reasoning_effort", "invalid_value"),
        ({"reasoning_effort": 3}, "reasoning_effort", "invalid_type"),
        ({"functions": [{"name": "f"}]}, "functions", "unsupported_parameter"),
        ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        (
            {"response_format": {"type": "json_schema"}},
            "response_format.json_schema",
            "missing_required_parameter",
        ),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
            "invalid_value",
        ),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "invalid_value"),
    ],
)
def test_refusals(fields: dict[str, Any], param: str, code: str) -> None:
    with running_api() as api:
        answer = api.post("/v1/chat/completions", json={**HELLO, **fields})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, code)
        assert error["type"] == "invalid_request_error"
        assert param in error["message"]
        assert not api.fake.submitted


def test_another_model() -> None:
    with running_api() as api:
        answer = api.post("/v1/chat/completions", json={**HELLO, "model": "gpt-5"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_unknown_fields_are_ignored() -> None:
    with running_api() as api:
        chat(api, audio={}, functions=[], web_search_options=None, reasoning_effort="minimal")
        api.fake.submitted.clear()
        chat(api, whatever={"x": 1}, user="me", store=True, model="test-model", seed=-5)
        assert api.fake.submitted[0].request.params.seed == (1 << 64) - 5


def test_sampling_parameters_reach_the_engine() -> None:
    given = {
        "temperature": 0,
        "top_p": 0,
        "top_k": -1,
        "min_p": 0.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repeat_penalty": 1.1,
        "logit_bias": {"5": -100},
        "seed": 7,
        "ignore_eos": True,
        "stop": "x",
    }
    with running_api() as api:
        chat(api, **given)
        params = api.fake.submitted[0].request.params
    assert params.temperature == 0
    assert 0 < params.top_p < 1e-6
    assert params.top_k == 0
    assert (params.min_p, params.repeat_penalty) == (0.1, 1.1)
    assert (params.presence_penalty, params.frequency_penalty) == (1, -1)
    assert params.logit_bias == {5: -100}
    assert (params.seed, params.ignore_eos) == (7, True)
    assert "x" in params.stop_strings


def test_it_waits_for_the_model() -> None:
    with running_api(is_loading=True) as api:
        answer = api.post("/v1/chat/completions", json=HELLO)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "loading"
    assert "retry-after" in answer.headers


def test_it_answers_without_v1_too() -> None:
    with running_api() as api:
        answer = api.post("/chat/completions", json=HELLO)
    assert answer.json()["choices"][0]["message"]["content"] == "Hello, world!"
