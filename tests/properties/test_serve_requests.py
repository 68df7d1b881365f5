"""Whatever the fields of a request hold, the answer is a text or says what is wrong."""

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from api_client import Api, running_api
from fake_engine import FakeEngine
from powerinfer.engine.request import Request
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.bodies import parse_object
from powerinfer.serve.engine_thread import EngineThread
from powerinfer.serve.errors import ApiError
from powerinfer.serve.metrics import ServerMetrics
from powerinfer.serve.running_engine import Unread

_SHARED = (
    *("model", "stream", "stream_options", "temperature", "top_p", "top_k", "min_p", "n", "seed"),
    *("presence_penalty", "frequency_penalty", "repeat_penalty", "logit_bias", "stop", "logprobs"),
    *("max_tokens", "max_completion_tokens", "ignore_eos", "response_format", "best_of", "echo"),
    *("suffix", "top_logprobs", "tools", "tool_choice", "functions", "modalities", "audio", "user"),
    *("encoding_format", "dimensions", "pooling", "instructions", "text", "reasoning", "store"),
    *("max_output_tokens", "previous_response_id", "include", "truncation", "metadata"),
    *("chat_template_kwargs", "reasoning_effort", "repeat_last_n", "parallel_tool_calls"),
)
_PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["user", "text", "function", "json_schema", "auto", "required", "test-model"]),
)
_NAMES = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "parameters",
        "json_schema",
        "schema",
        "include_usage",
        "format",
        "call_id",
        "output",
        "summary",
        "tool_calls",
        "arguments",
        "id",
        "tool_call_id",
        "5",
        "300",
    ]
)
_VALUES = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=8,
)
_FIELDS = st.dictionaries(st.sampled_from(_SHARED), _VALUES, max_size=4)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with running_api() as running:
        yield running


def check(api: Api, path: str, body: dict[str, Any]) -> None:
    answer = api.post(path, json=body)
    if answer.status_code == 200:
        assert api.fake.submitted
        return
    assert answer.status_code in (400, 404), answer.text
    error = answer.json()["error"]
    assert error["message"]
    assert len(error["message"]) < 1000


fuzzed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@fuzzed
@given(fields=_FIELDS, messages=_VALUES)
@example(fields={}, messages=[{"role": "user", "content": "Hi"}])
def test_chats(api: Api, fields: dict[str, Any], messages: Any) -> None:
    check(api, "/v1/chat/completions", {"messages": messages, **fields})
    talking = [{"role": "user", "content": "Hi"}]
    check(api, "/v1/chat/completions", {"messages": talking, **fields})


@fuzzed
@given(fields=_FIELDS, prompt=_VALUES)
@example(fields={"echo": True, "logprobs": 3}, prompt=[[300, 301], [302]])
def test_completions(api: Api, fields: dict[str, Any], prompt: Any) -> None:
    check(api, "/v1/completions", {"prompt": prompt, **fields})
    check(api, "/v1/completions", {"prompt": "Hi", **fields})


_OLLAMA = (
    *("model", "stream", "format", "options", "keep_alive", "think", "tools", "logprobs", "raw"),
    *("top_logprobs", "system", "template", "context", "suffix", "images", "truncate", "width"),
)
_OPTIONS = (
    *("num_ctx", "num_predict", "temperature", "top_k", "top_p", "min_p", "seed", "stop"),
    *("repeat_penalty", "repeat_last_n", "presence_penalty", "mirostat", "penalize_newline"),
)


@fuzzed
@given(
    fields=st.dictionaries(st.sampled_from(_OLLAMA), _VALUES, max_size=4),
    options=st.dictionaries(st.sampled_from(_OPTIONS), _PLAIN, max_size=3),
    given_input=_VALUES,
)
@example(fields={}, options={}, given_input=[{"role": "user", "content": "Hi"}])
def test_requests_of_ollama(
    api: Api, fields: dict[str, Any], options: dict[str, Any], given_input: Any
) -> None:
    body = {"model": "test-model", "options": options, **fields}
    talking = [{"role": "user", "content": "Hi"}]
    for path, name, value in (
        ("/api/chat", "messages", given_input),
        ("/api/chat", "messages", talking),
        ("/api/generate", "prompt", given_input),
        ("/api/generate", "prompt", "Hi"),
        ("/api/show", "name", given_input),
        ("/api/pull", "name", given_input),
    ):
        answer = api.post(path, json={**body, name: value})
        if answer.status_code == 200:
            assert all(isinstance(json.loads(each), dict) for each in answer.text.splitlines())
            continue
        assert answer.status_code in (400, 404), answer.text
        assert 0 < len(answer.json()["error"]) < 1000


@fuzzed
@given(fields=_FIELDS, given_input=_VALUES)
@example(fields={"encoding_format": "base64"}, given_input=[[300, 301], [302]])
def test_embeddings(api: Api, fields: dict[str, Any], given_input: Any) -> None:
    check(api, "/v1/embeddings", {"input": given_input, **fields})


@fuzzed
@given(fields=_FIELDS, given_input=_VALUES)
@example(fields={"reasoning": {}}, given_input=[{"role": "user", "content": "Hi"}])
def test_responses(api: Api, fields: dict[str, Any], given_input: Any) -> None:
    check(api, "/v1/responses", {"input": given_input, **fields})
    check(api, "/v1/responses", {"input": "Hi", **fields})


@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\u0d8e1-. ', max_size=60))
def test_bodies(body: bytes | str) -> None:
    try:
        assert isinstance(parse_object(body if isinstance(body, bytes) else body.encode()), dict)
    except ApiError as error:
        assert error.status == 400


@given(after=st.integers(0, 12), num_texts=st.integers(1, 3), parallel=st.integers(1, 3))
def test_whoever_leaves_frees_the_place_within_a_step(
    after: int, num_texts: int, parallel: int
) -> None:
    fake = FakeEngine(["x"] * 10_000, context_length=20_000, parallel=parallel)
    params = SamplingParams(n=num_texts, max_tokens=None)

    async def go() -> None:
        with ThreadPoolExecutor(2) as pool:
            thread = EngineThread(pool)
            thread.start()
            running = thread.add(fake, ServerMetrics().of("model"))
            unread = Unread()
            async with running.open(Request(prompt_ids=[1], params=params), unread):
                for _ in range(after):
                    await unread.get()
            assert fake.submitted[0].is_cancelled
            ended = fake.num_steps
            while fake.has_work:
                await asyncio.sleep(0)
            # One may have been under way.
            assert fake.num_steps <= ended + 2
            assert running.num_open == 0
            thread.close()
            assert thread.join(10)

    asyncio.run(go())
    fake.check_integrity()
