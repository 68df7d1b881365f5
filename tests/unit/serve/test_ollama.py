"""Ollama's chats and prompts with an engine that plays a script."""

import json
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import pytest

from api_client import Api, running_api
from chat_tokenizers import chat_tokenizer
from fake_engine import NAN, FakeEngine, Script
from powerinfer.serve.errors import ApiError
from powerinfer.serve.fields import Fields
from powerinfer.serve.ollama.options import read_keep_alive

MESSAGES = [{"role": "user", "content": "Hi"}]
QWEN = chat_tokenizer("Qwen-Qwen3-0.6B")
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "Tells the time", "parameters": {}},
}
CALL = ("I look.\n", "<tool_call>", '{"name": "clock", "argu', 'ments": {"zone"', ': "CET"}}')
COUNTS = ("load_duration", "prompt_eval_duration", "eval_duration", "total_duration")


def running(script: Script = ("Hello", ",", " world", "!")) -> AbstractContextManager[Api]:
    """A server of a model with a template, and room for its prompts."""
    return running_api(tokenizer=QWEN, fake=FakeEngine(script, context_length=8192))


def post(api: Api, path: str = "/api/chat", **fields: Any) -> Any:
    """The answer to a request that is not streamed, without its times, which are checked."""
    given = {"messages": MESSAGES} if path == "/api/chat" else {"prompt": "Hi"}
    body = {"model": "test-model", "stream": False, **given, **fields}
    answer = api.post(path, json=body)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert datetime.fromisoformat(found.pop("created_at")).tzinfo is not None
    times = [found.pop(name) for name in COUNTS]
    assert all(isinstance(each, int) and each >= 0 for each in times)
    assert sum(times[:3]) <= times[3]
    return found


def lines(api: Api, path: str = "/api/chat", **fields: Any) -> list[Any]:
    """The lines of a streamed answer; all but the last are pieces."""
    given = {"messages": MESSAGES} if path == "/api/chat" else {"prompt": "Hi"}
    answer = api.post(path, json={"model": "test-model", **given, **fields})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def refused(api: Api, path: str = "/api/chat", status: int = 400, **fields: Any) -> str:
    given = {"messages": MESSAGES} if path == "/api/chat" else {"prompt": "Hi"}
    answer = api.post(path, json={"model": "test-model", **given, **fields})
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    return str(answer.json()["error"])


def prompt_of(api: Api) -> str:
    """The prompt of the last request, as text."""
    ids = api.fake.submitted[-1].request.prompt_ids
    return api.model.tokenizer.decode(ids, skip_special=False)


def test_a_whole_chat() -> None:
    with running_api() as api:
        answer = post(api)
        num_prompt = len(api.fake.submitted[0].request.prompt_ids)
    assert answer == {
        "model": "test-model",
        "message": {"role": "assistant", "content": "Hello, world!"},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": num_prompt,
        "eval_count": 4,
    }


def test_a_streamed_chat_is_the_default() -> None:
    with running_api() as api:
        *pieces, last = lines(api, options={"num_predict": 3})
    assert [each["message"]["content"] for each in pieces] == ["Hello", ",", " world"]
    assert not any(each["done"] or "done_reason" in each for each in pieces)
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"], last["eval_count"]) == (True, "length", 3)
    assert set(COUNTS) <= set(last)


def test_a_prompt() -> None:
    with running() as api:
        assert post(api, "/api/generate", system="Be brief.")["response"] == "Hello, world!"
        assert "Be brief." in prompt_of(api)
        assert "<|im_start|>user\nHi<|im_end|>" in prompt_of(api)
        assert post(api, "/api/generate", raw=True)["response"] == "Hello, world!"
        assert prompt_of(api) == "Hi"
        *pieces, last = lines(api, "/api/generate")
    assert "".join(each["response"] for each in pieces) == "Hello, world!"
    assert (last["response"], last["done"], last["done_reason"]) == ("", True, "stop")


def test_options_reach_the_engine() -> None:
    options = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.1,
        "seed": 3,
        "stop": ["x", "y"],
        "repeat_penalty": 1.1,
        "repeat_last_n": -1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "num_predict": 9,
        "num_ctx": 512,
        # These change no answer here.
        "num_gpu": 99,
        "num_thread": 4,
        "use_mmap": True,
        "num_keep": 5,
        "num_batch": 2,
        "mirostat": 0,
        "tfs_z": 1,
        "typical_p": 1,
        "penalize_newline": True,
    }
    with running_api() as api:
        post(api, options=options)
        params = api.fake.submitted[0].request.params
        post(api, "/api/generate", options={"num_predict": -2})
        assert api.fake.submitted[1].request.params.max_tokens is None
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.5, 0.1)
    assert (params.seed, params.stop, params.max_tokens) == (3, ("x", "y", "\nUser:"), 9)
    assert (params.repeat_penalty, params.repeat_last_n) == (1.1, 512)
    assert (params.presence_penalty, params.frequency_penalty) == (0.2, 0.3)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"num_ctx": 513}, "options.num_ctx must be at most 512"),
        ({"num_ctx": "512"}, "options.num_ctx"),
        ({"mirostat": 1}, "options.mirostat 1 is not supported"),
        ({"typical_p": 0.5}, "options.typical_p 0.5 is not supported"),
        ({"penalize_newline": False}, "options.penalize_newline false is not supported"),
        ({"vocab_only": True}, "options.vocab_only is not supported"),
        ({"temperature": "hot"}, "options.temperature must be a number"),
        ({"num_predict": "many"}, "options.num_predict"),
        ([], "options must be an object"),
    ],
)
def test_options_that_cannot_be_kept(options: Any, wanted: str) -> None:
    with running_api() as api:
        assert wanted in refused(api, options=options)
        assert wanted in refused(api, "/api/generate", options=options)
        assert not api.fake.submitted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"suffix": "x"}, "suffix is not supported"),
        ({"template": "{{ .Prompt }}"}, "template is not supported"),
        ({"context": [1, 2]}, "context is not supported: send earlier turns to /api/chat"),
        ({"images": ["aGk="]}, "images are not supported"),
        ({"width": 5}, "width is not supported"),
        ({"raw": True, "system": "x"}, "system is of no use with raw"),
        ({"prompt": 5}, "prompt must be a text"),
        ({"format": "yaml"}, 'format must be "json" or a JSON schema'),
        ({"format": 5}, 'format must be "json" or a JSON schema'),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs"),
        ({"keep_alive": "soon"}, "keep_alive must be seconds or a duration"),
        ({"think": "often"}, "think must be true, false, low, medium, high"),
        ({"model": ""}, "model is empty"),
        ({"model": None}, "model is missing"),
    ],
)
def test_fields_that_cannot_be_kept(fields: dict[str, Any], wanted: str) -> None:
    with running_api() as api:
        assert wanted in refused(api, "/api/generate", **fields)
        assert not api.fake.submitted


def test_images_and_roles_of_messages() -> None:
    with running_api() as api:
        picture = [{"role": "user", "content": "What?", "images": ["aGk="]}]
        assert "messages[0].images are not supported" in refused(api, messages=picture)
        assert "messages[0].role" in refused(api, messages=[{"role": "god", "content": "x"}])


def test_too_long_prompts() -> None:
    with running_api() as api:
        assert "512" in refused(api, messages=[{"role": "user", "content": "word " * 600}])
        assert "512" in refused(api, "/api/generate", raw=True, prompt="word " * 600)


def test_forms() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    with running_api() as api:
        for given, wanted in (("json", {"type": "object"}), (schema, schema)):
            post(api, format=given)
            assert json.loads(str(api.fake.submitted[-1].request.params.json_schema)) == wanted
        post(api, format="")
        assert not api.fake.submitted[-1].request.params.has_form


def test_tool_calls() -> None:
    wanted = {"index": 0, "name": "clock", "arguments": {"zone": "CET"}}
    with running([*CALL, "</tool_call>"]) as api:
        message = post(api, tools=[CLOCK])["message"]
        assert message["content"].strip() == "I look."
        assert [each["function"] for each in message["tool_calls"]] == [wanted]
        assert "clock" in prompt_of(api)
        *pieces, last = lines(api, tools=[CLOCK])
    calls = [call for each in pieces for call in each["message"].get("tool_calls", ())]
    assert [each["function"] for each in calls] == [wanted]
    assert last["done_reason"] == "stop"


def test_results_of_tools_go_to_the_template() -> None:
    call = {"function": {"name": "clock", "arguments": {"zone": "CET"}}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "thinking": "Hm.", "tool_calls": [call]},
        {"role": "tool", "tool_name": "clock", "content": "Noon"},
    ]
    with running() as api:
        post(api, messages=messages, tools=[CLOCK])
        assert '"zone": "CET"' in prompt_of(api)
        assert "<tool_response>\nNoon\n</tool_response>" in prompt_of(api)


def test_reasoning() -> None:
    with running(["<think>", "Hm.", "</think>", "\n\n", "Yes"]) as api:
        message = post(api, think=True)["message"]
        assert (message["thinking"], message["content"]) == ("Hm.", "Yes")
        answer = post(api, "/api/generate")
        assert (answer["thinking"], answer["response"]) == ("Hm.", "Yes")
        pieces = [each["message"] for each in lines(api)]
        assert "".join(each.get("thinking", "") for each in pieces) == "Hm."
        assert "".join(each["content"] for each in pieces) == "Yes"
        post(api, think=False)
        assert prompt_of(api).endswith("<think>\n\n</think>\n\n")
        assert "think high is not supported" in refused(api, think="high")


def test_reasoning_that_a_model_cannot_do() -> None:
    with running_api(tokenizer=chat_tokenizer("openai-gpt-oss-20b")) as api:
        assert "think false is not supported: this model always" in refused(api, think=False)
    with running_api() as api:
        assert "knows no reasoning" in refused(api, think=True)
        post(api, think=False)


def test_log_probabilities() -> None:
    with running_api() as api:
        found = post(api, logprobs=True, top_logprobs=2)["logprobs"]
        streamed = [each for line in lines(api, logprobs=True) for each in line["logprobs"]]
    assert [each["logprob"] for each in found] == [-0.5] * 4
    assert [len(each["top_logprobs"]) for each in found] == [2] * 4
    assert len(streamed) == 4


def test_an_error_in_a_stream_is_its_last_line() -> None:
    with running_api(["Hello", NAN]) as api:
        first, last = lines(api)
        assert first["message"]["content"] == "Hello"
        assert last == {"error": "NaN in the logits"}
        assert refused(api, status=500, stream=False) == "NaN in the logits"


def test_names_may_have_the_tag_latest() -> None:
    with running_api() as api:
        assert post(api, model="test-model:latest")["model"] == "test-model:latest"
        assert "there is no model 'other'" in refused(api, status=404, model="other")
        assert "no model" in refused(api, status=404, model="test-model:7b")
        chat = {"messages": MESSAGES, "model": "test-model:latest"}
        assert api.post("/v1/chat/completions", json=chat).status_code == 404


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        (0, 0),
        (1.5, 1.5),
        (-1, float("inf")),
        (1e300, float("inf")),
        ("0", 0),
        ("90", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("300ms", 0.3),
        ("-1m", float("inf")),
        ("-1", float("inf")),
    ],
)
def test_times_to_stay(value: Any, seconds: float | None) -> None:
    assert read_keep_alive(Fields({"keep_alive": value})) == seconds


@pytest.mark.parametrize("value", ["", "m", "5 m", "5d", "-", "1h-30m", True, []])
def test_what_is_no_time(value: Any) -> None:
    with pytest.raises(ApiError, match="keep_alive"):
        read_keep_alive(Fields({"keep_alive": value}))
