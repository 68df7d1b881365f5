"""The rule of bits over HTTP: an answer beside thirty others is the one alone, without drafts."""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from patience import PATIENCE_S
from powerinfer import LLM, SamplingParams
from serving import Server, serving

FLAGS = ("-c", "512", "-t", "2")
NUM_REQUESTS = 32
STORY = (
    "Once upon a time there was a little dog named Tim. He liked to play in the park with his "
    "friends. One day he saw a big tree, and in the tree there was a bird."
)


@pytest.fixture(scope="module")
def together() -> Iterator[Server]:
    with serving(*FLAGS, "-np", "8") as server:
        yield server
        assert server.stop() == 0


@pytest.fixture(scope="module")
def alone() -> Iterator[Server]:
    with serving(*FLAGS, "-np", "1") as server:
        yield server
        assert server.stop() == 0


def _requests(seed: int) -> list[dict[str, Any]]:
    """Of all kinds: short and long, greedy and seeded, with stop strings and shared prefixes."""
    draw = random.Random(seed)
    words = STORY.split()
    found = []
    for number in range(NUM_REQUESTS):
        shared = " ".join(words[: draw.randint(1, len(words))])
        request: dict[str, Any] = {
            "prompt": shared if number % 3 else [draw.randrange(300, 4000) for _ in range(40)],
            "max_tokens": draw.choice([1, 2, 17, 60, 300]),
            "temperature": draw.choice([0, 0.8, 1.3]),
            "seed": number,
            "logprobs": 3,
            "stream": bool(number % 2),
        }
        if number % 5 == 0:
            request["stop"] = [" the", ". He"]
        if number % 4 == 0:
            # What was said comes again.
            request["prompt"] = f"{STORY} {STORY} {shared}"
        if number % 7 == 0:
            request |= {"presence_penalty": 0.5, "frequency_penalty": 0.5, "top_p": 0.9}
        found.append(request)
    return found


def _answer(server: Server, request: dict[str, Any]) -> dict[str, Any]:
    """Text, ids, log probabilities and reason of an answer, whole or in pieces."""
    answer = server.post("/v1/completions", request)
    assert answer.status_code == 200, answer.text
    if not request["stream"]:
        choices = [answer.json()["choices"][0]]
    else:
        lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        choices = [json.loads(line)["choices"][0] for line in lines[:-1]]
    logprobs = [each["logprobs"] for each in choices if each["logprobs"]]
    return {
        "text": "".join(each["text"] for each in choices),
        "ids": [item for each in logprobs for item in each["token_ids"]],
        "logprobs": [item for each in logprobs for item in each["token_logprobs"]],
        "top": [item for each in logprobs for item in each["top_logprobs"]],
        "finish_reason": choices[-1]["finish_reason"],
    }


def _cancelled(server: Server, request: dict[str, Any]) -> None:
    """Begin a request and leave after its first bytes."""
    connection = server.stream(**request | {"stream": True})
    connection.recv(100)
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_beside_others_as_alone(together: Server, alone: Server, seed: int) -> None:
    requests = _requests(seed)
    with ThreadPoolExecutor(NUM_REQUESTS + 8) as pool:
        leaving = [pool.submit(_cancelled, together, each) for each in requests[:8]]
        answers = list(pool.map(lambda each: _answer(together, each), requests))
        for each in leaving:
            each.result(PATIENCE_S)
    for request, answer in zip(requests, answers, strict=True):
        assert answer == _answer(alone, request | {"draft": "off"}), request
    assert together.figure("powerinfer_kv_blocks_used") == 0


@pytest.mark.slow
def test_over_http_as_in_python(together: Server) -> None:
    requests = _requests(3)
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        answers = list(pool.map(lambda each: _answer(together, each), requests))
    llm = LLM(context_length=512, threads=2)
    names = ["max_tokens", "temperature", "seed", "stop", "top_p", "logprobs"]
    names += ["presence_penalty", "frequency_penalty"]
    for request, answer in zip(requests, answers, strict=True):
        params = SamplingParams(**{name: request[name] for name in names if name in request})
        (expected,) = llm.generate(request["prompt"], params)
        assert answer["text"] == expected.text, request
        assert answer["ids"] == expected.token_ids
        assert expected.logprobs is not None
        assert answer["logprobs"] == [each.logprob for each in expected.logprobs]
        assert answer["finish_reason"] == expected.finish_reason


def test_the_first_of_several_is_the_one_alone(together: Server) -> None:
    request = {"prompt": STORY, "max_tokens": 30, "seed": 5, "logprobs": 1}
    several = together.complete(**request, n=4)["choices"]
    (single,) = together.complete(**request)["choices"]
    assert several[0] == single
    assert len({each["text"] for each in several}) == 4
    # Text number i has the seed `seed` + i.
    (second,) = together.complete(**request | {"seed": 6})["choices"]
    assert several[1] == {**second, "index": 1}


def test_a_chat_that_goes_on_finds_what_it_said(together: Server, alone: Server) -> None:
    """Keys and values of a prompt are found again, and no bit depends on that."""
    first = {"role": "user", "content": STORY}
    body: dict[str, Any] = {"messages": [first], "max_tokens": 40, "seed": 1, "logprobs": True}
    answers = []
    for server in (together, alone):
        messages = [first]
        told = []
        for _ in range(3):
            answer = server.post("/v1/chat/completions", {**body, "messages": messages}).json()
            (choice,) = answer["choices"]
            told.append((choice["message"]["content"], choice["logprobs"]["content"]))
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            messages = [*messages, choice["message"], {"role": "user", "content": "And then"}]
        assert cached > 0
        answers.append(told)
    assert answers[0] == answers[1]


def test_a_form_that_cannot_be_enforced(together: Server) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "strange"}}}
    for path, body in (
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        answer = together.post(path, {**body, "stream": True, "response_format": wanted})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "response_format"
        assert "strange" in answer.json()["error"]["message"]


def test_a_form_beside_others_as_alone(together: Server, alone: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    request = {
        "prompt": STORY,
        "max_tokens": 40,
        "seed": 2,
        "logprobs": 1,
        "stream": False,
        "response_format": wanted,
    }
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: _answer(together, request), range(8)))
    assert all(answer == _answer(alone, request) for answer in answers)
    assert "a" in json.loads(answers[0]["text"])
