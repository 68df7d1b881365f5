"""The package `ollama` on a server: chats, prompts, embeddings, tools, models, errors."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from client_cases import KEY, MARKS, MODEL, NUM_TOKENS, PROMPT, Hour
from serving import Server

ollama = pytest.importorskip("ollama", reason="ollama is not installed")

pytestmark = MARKS

HEADERS = {"Authorization": f"Bearer {KEY}"}
OPTIONS = {"temperature": 0, "num_predict": NUM_TOKENS}
TALK = [{"role": "user", "content": PROMPT}]


def clock(place: str) -> str:
    """Tell the hour.

    Args:
        place: Where.
    """
    return place


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with ollama.Client(server.url, headers=HEADERS) as made:
        yield made


def test_a_prompt(client: Any, expected: str) -> None:
    made = client.generate(MODEL, PROMPT, raw=True, options=OPTIONS)
    assert made.response == expected
    assert (made.done_reason, made.eval_count) == ("length", NUM_TOKENS)
    parts = client.generate(MODEL, PROMPT, raw=True, options=OPTIONS, stream=True)
    assert "".join(part.response for part in parts) == expected


def test_a_chat(client: Any) -> None:
    made = client.chat(MODEL, TALK, options=OPTIONS, logprobs=True, top_logprobs=2)
    assert made.message.role == "assistant"
    assert made.message.content
    assert len(made.logprobs) == NUM_TOKENS
    assert all(len(token.top_logprobs) == 2 for token in made.logprobs)
    *parts, last = client.chat(MODEL, TALK, options=OPTIONS, stream=True)
    assert "".join(part.message.content for part in parts) == made.message.content
    assert (last.done, last.eval_count) == (True, NUM_TOKENS)
    assert last.prompt_eval_count == made.prompt_eval_count


def test_thinking_is_switched(client: Any) -> None:
    on, off = (client.chat(MODEL, TALK, options=OPTIONS, think=each) for each in (True, False))
    # The template closes the reasoning before the answer begins.
    assert off.prompt_eval_count > on.prompt_eval_count


def test_a_form_of_the_answer(client: Any) -> None:
    made = client.chat(MODEL, TALK, format=Hour.model_json_schema(), options={"temperature": 0})
    assert Hour.model_validate_json(made.message.content)
    assert made.done_reason == "stop"


def test_tools_and_their_results(client: Any) -> None:
    call = {"function": {"name": "clock", "arguments": {"place": "Bonn"}}}
    asked = ollama.Message(role="assistant", content="", tool_calls=[call])
    result = {"role": "tool", "tool_name": "clock", "content": "noon"}
    alone = client.chat(MODEL, TALK, options=OPTIONS)
    first = client.chat(MODEL, TALK, tools=[clock], options=OPTIONS)
    after = client.chat(MODEL, [*TALK, asked, result], tools=[clock], options=OPTIONS)
    counts = [each.prompt_eval_count for each in (alone, first, after)]
    assert counts == sorted(set(counts))


def test_embeddings(client: Any) -> None:
    made = client.embed(MODEL, ["Once", "The cat"])
    assert [len(vector) for vector in made.embeddings] == [256, 256]
    (again,) = client.embed(MODEL, "The cat").embeddings
    assert again == made.embeddings[1]
    assert len(client.embeddings(MODEL, "Once").embedding) == 256


def test_models(client: Any) -> None:
    (listed,) = client.list().models
    assert listed.model == f"{MODEL}:latest"
    shown = client.show(MODEL)
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities)
    assert shown.template
    assert client.pull(MODEL).status == "success"


def test_loading_and_unloading(client: Any) -> None:
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert not client.ps().models
    assert client.generate(MODEL).done_reason == "load"
    (loaded,) = client.ps().models
    assert loaded.model == f"{MODEL}:latest"


def test_asynchronous_calls_side_by_side(server: Server, expected: str) -> None:
    async def run() -> list[str]:
        async with ollama.AsyncClient(server.url, headers=HEADERS) as client:
            calls = [client.generate(MODEL, PROMPT, raw=True, options=OPTIONS) for _ in range(4)]
            made = [each.response for each in await asyncio.gather(*calls)]
            stream = await client.generate(MODEL, PROMPT, raw=True, options=OPTIONS, stream=True)
            return [*made, "".join([part.response async for part in stream])]

    assert asyncio.run(run()) == [expected] * 5


def test_errors_are_those_of_the_client(server: Server, client: Any) -> None:
    with pytest.raises(ollama.ResponseError, match="no model") as error:
        client.chat("gpt-5", TALK)
    assert error.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="mirostat") as error:
        client.chat(MODEL, TALK, options={"mirostat": 2})
    assert error.value.status_code == 400
    with ollama.Client(server.url) as stranger:
        with pytest.raises(ollama.ResponseError) as error:
            stranger.list()
        assert error.value.status_code == 401
