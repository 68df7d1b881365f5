"""`/v1/completions` with an engine that plays a script, and `/v1/models`."""

import json
from typing import Any

import pytest

from api_client import Api, embedded_tokenizer, events, running_api
from fake_engine import FIRST_ID


def complete(api: Api, prompt: Any = "Once", **fields: Any) -> Any:
    answer = api.post("/v1/completions", json={"prompt": prompt, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(api: Api, prompt: Any = "Once", **fields: Any) -> list[Any]:
    body = {"prompt": prompt, "stream": True, **fields}
    answer = api.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    found = events(answer.text)
    assert found[-1] == "[DONE]"
    return [json.loads(each) for each in found[:-1]]


def test_a_text() -> None:
    with running_api() as api:
        answer = complete(api)
        asked = api.fake.submitted[0].request
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [
        {"text": "Hello, world!", "index": 0, "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"]["completion_tokens"] == 4
    assert asked.params.max_tokens == 16
    assert list(asked.prompt_ids) == embedded_tokenizer().encode("Once")


def test_several_prompts_and_texts() -> None:
    def script(request: Any, index: int) -> list[str]:
        return [f"{len(request.prompt_ids)}/{index}"] * (1 + len(request.prompt_ids) % 3)

    with running_api(script) as api:
        prompts = [[5], [5, 6], [5, 6, 7]]
        answer = complete(api, prompts, n=2)
        chunks = streamed(api, prompts, n=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == ["1/0" * 2, "1/1" * 2, "2/0" * 3, "2/1" * 3, "3/0", "3/1"]
    assert answer["usage"]["prompt_tokens"] == 6
    joined = [""] * 6
    for chunk in chunks:
        joined[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert joined == texts


@pytest.mark.parametrize(
    ("prompt", "num"), [("a", 1), (["a", "b"], 2), ([300, 301], 1), ([[300], [301], [302]], 3)]
)
def test_forms_of_prompts(prompt: Any, num: int) -> None:
    with running_api() as api:
        assert len(complete(api, prompt)["choices"]) == num
        assert len(api.fake.submitted) == num


def test_logprobs() -> None:
    with running_api() as api:
        logprobs = complete(api, logprobs=2, max_tokens=2)["choices"][0]["logprobs"]
        none_listed = complete(api, logprobs=0, max_tokens=1)["choices"][0]["logprobs"]
    tokenizer = embedded_tokenizer()
    assert logprobs["token_ids"] == [FIRST_ID, FIRST_ID + 1]
    assert logprobs["tokens"] == [tokenizer.piece(FIRST_ID), tokenizer.piece(FIRST_ID + 1)]
    assert logprobs["token_logprobs"] == [-0.5, -0.5]
    assert list(logprobs["top_logprobs"][0].values()) == [-0.5, -1.5]
    first = len(tokenizer.decode([FIRST_ID]))
    assert logprobs["text_offset"][0] == len("Once")
    assert logprobs["text_offset"][1] >= len("Once") + first
    # The chosen token is listed in any case.
    assert list(none_listed["top_logprobs"][0].values()) == [-0.5]


def test_echo_repeats_the_prompt_with_its_logprobs() -> None:
    with running_api() as api:
        answer = complete(api, [300, 301, 302], echo=True, logprobs=1, max_tokens=1)
        asked = api.fake.submitted[0].request
    choice = answer["choices"][0]
    assert asked.prompt_logprobs == 1
    assert choice["text"] == embedded_tokenizer().decode([300, 301, 302]) + "Hello"
    assert choice["logprobs"]["token_ids"] == [300, 301, 302, FIRST_ID]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"][0] == 0


def test_echo_of_a_text_leaves_bos_out() -> None:
    with running_api() as api:
        answer = complete(api, "Once upon", echo=True, logprobs=0, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == "Once upon"
    assert choice["finish_reason"] == "length"
    ids = embedded_tokenizer().encode("Once upon")
    assert choice["logprobs"]["token_ids"] == ids[1:]
    assert None not in choice["logprobs"]["token_logprobs"]


def test_echo_in_a_stream() -> None:
    with running_api() as api:
        chunks = streamed(api, "Once", echo=True, stream_options={"include_usage": True})
    assert "".join(each["choices"][0]["text"] for each in chunks[:-1]) == "OnceHello, world!"
    assert chunks[-1]["usage"]["completion_tokens"] == 4
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": [[]]}, "prompt[0]", "empty_array"),
        ({"prompt": 3}, "prompt", "invalid_type"),
        ({"prompt": [300, "a"]}, "prompt", "invalid_value"),
        ({"prompt": ["a", 300]}, "prompt[1]", "invalid_type"),
        ({"prompt": [True]}, "prompt", "invalid_value"),
        ({"prompt": [-1]}, "prompt", "invalid_value"),
        ({"prompt": [10**12]}, "prompt", "invalid_value"),
        ({"prompt": [1] * 600}, "prompt", "context_length_exceeded"),
        ({"prompt": "word " * 600}, "prompt", "context_length_exceeded"),
        ({"prompt": [[1]] * 30, "n": 128}, "prompt", "array_above_max_length"),
        ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
        ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
        ({"suffix": "end"}, "suffix", "unsupported_parameter"),
        ({"best_of": 3}, "best_of", "unsupported_value"),
        ({"n": 3, "best_of": 2}, "best_of", "invalid_value"),
        ({"echo": 1}, "echo", "invalid_type"),
    ],
)
def test_refusals(fields: dict[str, Any], param: str, code: str) -> None:
    with running_api() as api:
        answer = api.post("/v1/completions", json={"prompt": "a", **fields})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (param, code)
        assert not api.fake.submitted


def test_fields_that_say_nothing_are_no_mistake() -> None:
    with running_api() as api:
        complete(api, suffix="", best_of=1, logit_bias={}, stop=None, user="x")


def test_models() -> None:
    with running_api(other_names=("other",)) as api:
        listed = api.get("/v1/models").json()
        assert listed["object"] == "list"
        assert [each["id"] for each in listed["data"]] == ["test-model"]
        assert listed["data"][0]["meta"]["n_vocab"] == embedded_tokenizer().vocab_size
        assert api.get("/v1/models/test-model").json() == listed["data"][0]
        assert api.get("/v1/models/other").json() == listed["data"][0]
        missing = api.get("/v1/models/a/b")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


def test_limits_are_named_with_all_of_their_digits() -> None:
    with running_api() as api:
        answer = api.post("/v1/completions", json={"prompt": "a", "max_tokens": 10**12})
        assert "at most 2147483647, got" in answer.json()["error"]["message"]
        answer = api.post("/v1/completions", json={"prompt": "a", "temperature": 3})
        assert "at most 2, got" in answer.json()["error"]["message"]
