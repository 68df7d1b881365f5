"""The package `anthropic` on every endpoint of a server with the model of the package."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from serving import Server, serving

anthropic = pytest.importorskip("anthropic", reason="anthropic is not installed")

KEY = "secret"
ASKED: Any = {
    "model": "powerinfer-story",
    "max_tokens": 12,
    # Newer clients have no name for it.
    "extra_body": {"temperature": 0},
    "system": "Tell a story.",
    "messages": [{"role": "user", "content": "Once upon a time there was"}],
}
CLOCK: Any = {
    "name": "clock",
    "description": "Tells the time",
    "input_schema": {
        "type": "object",
        "properties": {"hour": {"enum": [1, 2]}},
        "required": ["hour"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("-t", "1", "-np", "4", "-c", "512", "--api-key", KEY) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


def test_a_message(client: Any) -> None:
    made = client.messages.create(**ASKED)
    (block,) = made.content
    assert block.text
    assert made.stop_reason == "max_tokens"
    assert made.usage.output_tokens == 12
    again = client.messages.create(**ASKED)
    assert again.content[0].text == block.text
    assert again.usage.cache_read_input_tokens > 0
    total = made.usage.input_tokens + made.usage.cache_read_input_tokens
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == total


def test_a_stream(client: Any) -> None:
    whole = client.messages.create(**ASKED).content[0].text
    names = [event.type for event in client.messages.create(stream=True, **ASKED)]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]
    with client.messages.stream(**ASKED) as stream:
        assert "".join(stream.text_stream) == whole
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == ("max_tokens", 12)


def test_a_stop_sequence(client: Any) -> None:
    whole = client.messages.create(**ASKED).content[0].text
    word = whole.split()[2]
    made = client.messages.create(stop_sequences=[word], **ASKED)
    assert (made.stop_reason, made.stop_sequence) == ("stop_sequence", word)
    assert whole.startswith(made.content[0].text)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "clock"}])
def test_a_tool_that_must_be_used(client: Any, choice: Any) -> None:
    fields = {**ASKED, "max_tokens": 100, "tools": [CLOCK], "tool_choice": choice}
    made = client.messages.create(**fields)
    (use,) = made.content
    assert (use.type, use.name, made.stop_reason) == ("tool_use", "clock", "tool_use")
    assert use.input["hour"] in (1, 2)
    with client.messages.stream(**fields) as stream:
        (again,) = stream.get_final_message().content
    assert again.input == use.input
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "It is noon."}
    answered = [
        *ASKED["messages"],
        {"role": "assistant", "content": [use.model_dump()]},
        {"role": "user", "content": [result]},
    ]
    fields = {**ASKED, "messages": answered, "tools": [CLOCK]}
    assert client.messages.create(**fields).content[0].type == "text"


def test_tokens_are_counted(client: Any) -> None:
    fields = {name: ASKED[name] for name in ("model", "system", "messages")}
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(**ASKED).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_asynchronous_clients_side_by_side(server: Server) -> None:
    async def run() -> set[str]:
        async with anthropic.AsyncAnthropic(
            base_url=server.url, api_key=KEY, max_retries=0
        ) as client:

            async def stream() -> str:
                async with client.messages.stream(**ASKED) as stream:
                    return str(await stream.get_final_text())

            made = (client.messages.create(**ASKED) for _ in range(3))
            texts = await asyncio.gather(*(stream() for _ in range(3)))
            whole = await asyncio.gather(*made)
            return {*texts, *(each.content[0].text for each in whole)}

    assert len(asyncio.run(run())) == 1


def test_errors_are_those_of_the_client(server: Server, client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**ASKED, "max_tokens": 0})
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASKED, "model": "claude"})
    long = [{"role": "user", "content": "word " * 600}]
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(**{**ASKED, "messages": long})
    stranger = anthropic.Anthropic(base_url=server.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(**ASKED)
