"""The package `openai` on every endpoint of a server with the model of the package."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from powerinfer import LLM, SamplingParams
from serving import Server, serving

openai = pytest.importorskip("openai", reason="openai is not installed")

KEY = "secret"
USER: Any = [{"role": "user", "content": "Once upon a time there was"}]
GREEDY: Any = {"model": "powerinfer-story", "temperature": 0, "max_tokens": 12}
CLOCK: Any = {
    "type": "function",
    "function": {
        "name": "clock",
        "parameters": {
            "type": "object",
            "properties": {"hour": {"enum": [1, 2]}},
            "required": ["hour"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("-t", "1", "-np", "4", "-c", "512", "--api-key", KEY) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def expected() -> str:
    """What the engine itself generates."""
    with LLM(threads=1, context_length=512) as llm:
        params = SamplingParams(temperature=0, max_tokens=12)
        return llm.generate(USER[0]["content"], params)[0].text


def test_models(client: Any) -> None:
    (model,) = client.models.list()
    assert model.id == "powerinfer-story"
    assert client.models.retrieve(model.id).id == model.id
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-5")
    assert error.value.code == "model_not_found"


def test_a_completion(client: Any, expected: str) -> None:
    made = client.completions.create(prompt=USER[0]["content"], **GREEDY)
    assert made.choices[0].text == expected
    assert made.choices[0].finish_reason == "length"
    assert made.usage.completion_tokens == 12
    streamed = client.completions.create(prompt=USER[0]["content"], stream=True, **GREEDY)
    assert "".join(chunk.choices[0].text for chunk in streamed) == expected


def test_completions_of_many_prompts(client: Any) -> None:
    made = client.completions.create(
        prompt=["Once", "The cat"], n=2, logprobs=2, echo=True, seed=3, **GREEDY
    )
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3]
    assert made.choices[2].text.startswith("The cat")
    logprobs = made.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)


def test_a_chat(client: Any) -> None:
    made = client.chat.completions.create(messages=USER, logprobs=True, top_logprobs=2, **GREEDY)
    (choice,) = made.choices
    assert choice.message.role == "assistant"
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    *chunks, usage = client.chat.completions.create(
        messages=USER, stream=True, stream_options={"include_usage": True}, **GREEDY
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content
    assert usage.usage.completion_tokens == made.usage.completion_tokens
    assert usage.usage.prompt_tokens_details.cached_tokens >= 0


def test_the_streaming_helper(client: Any) -> None:
    fields = {**GREEDY, "max_tokens": 200, "stop": ["."]}
    with client.chat.completions.stream(messages=USER, **fields) as stream:
        pieces = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert "".join(pieces) == final.choices[0].message.content


def test_a_tool_that_must_be_called(client: Any) -> None:
    fields = {**GREEDY, "max_tokens": 100}
    made = client.chat.completions.create(
        messages=USER, tools=[CLOCK], tool_choice="required", **fields
    )
    (call,) = made.choices[0].message.tool_calls
    assert call.function.name == "clock"
    assert json.loads(call.function.arguments)["hour"] in (1, 2)
    assert made.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(
        messages=USER, tools=[CLOCK], tool_choice=CLOCK | {"function": {"name": "clock"}}, **fields
    ) as stream:
        names = {event.type for event in stream}
        (again,) = stream.get_final_completion().choices[0].message.tool_calls
    assert again.function.arguments == call.function.arguments
    assert "tool_calls.function.arguments.delta" in names


def test_a_form_of_the_answer(client: Any) -> None:
    schema = CLOCK["function"]["parameters"]
    form = {"type": "json_schema", "json_schema": {"name": "hour", "schema": schema}}
    made = client.chat.completions.create(messages=USER, response_format=form, **GREEDY)
    assert json.loads(made.choices[0].message.content)["hour"] in (1, 2)


def test_asynchronous_clients_side_by_side(server: Server, expected: str) -> None:
    async def complete(client: Any, number: int) -> str:
        if number % 2:
            made = await client.completions.create(prompt=USER[0]["content"], **GREEDY)
            return str(made.choices[0].text)
        stream = await client.completions.create(prompt=USER[0]["content"], stream=True, **GREEDY)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def run() -> list[str]:
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            chat = client.chat.completions.create(messages=USER, **GREEDY)
            models = await client.models.list()
            assert len(models.data) == 1
            *texts, made = await asyncio.gather(*(complete(client, i) for i in range(8)), chat)
            assert made.choices[0].message.content
            return texts

    assert asyncio.run(run()) == [expected] * 8


def test_a_stream_that_is_left(server: Server, client: Any) -> None:
    with client.completions.create(
        prompt="Once", stream=True, max_tokens=400, model="powerinfer-story",
        extra_body={"ignore_eos": True},
    ) as stream:  # fmt: skip
        next(iter(stream))
    made = client.completions.create(prompt="Once", **GREEDY)
    assert made.choices[0].text


def test_errors_are_those_of_the_client(server: Server, client: Any) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError):
        create(messages=USER, model="gpt-5")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        create(messages=USER, model="powerinfer-story", temperature=3)
    with pytest.raises(openai.BadRequestError) as error:
        create(messages=[{"role": "user", "content": "word " * 600}], model="powerinfer-story")
    assert error.value.code == "context_length_exceeded"
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with stranger, pytest.raises(openai.AuthenticationError) as error:
        stranger.models.list()
    assert error.value.code == "invalid_api_key"


def test_embeddings_are_those_of_the_engine(client: Any) -> None:
    texts = ["Once upon a time", "The cat sat on the mat", "Lily"]
    with LLM(threads=1, context_length=512) as llm:
        expected = llm.embed(texts)
    made = client.embeddings.create(model="powerinfer-story", input=texts)
    assert [each.embedding for each in made.data] == expected.tolist()
    (listed,) = client.embeddings.create(
        model="powerinfer-story", input=texts[1], encoding_format="float"
    ).data
    assert listed.embedding == expected[1].tolist()
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="powerinfer-story", input=texts, dimensions=8)


RESPONSE: Any = {"model": "powerinfer-story", "temperature": 0}
RESPONSE_CLOCK: Any = {"type": "function", "strict": False, **CLOCK["function"]}


def checked(response: Any) -> Any:
    """A response of the client, whose every field has the type that the client declares."""
    return type(response).model_validate(response.to_dict(), strict=True)


def test_a_response(client: Any, expected: str) -> None:
    create = client.responses.create
    made = checked(create(input=USER[0]["content"], max_output_tokens=12, **RESPONSE))
    assert made.output_text == expected
    assert (made.status, made.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert made.usage.output_tokens == 12
    assert made.usage.input_tokens_details.cached_tokens >= 0
    found = list(create(input=USER, max_output_tokens=12, stream=True, **RESPONSE))
    for event in found:
        checked(event)
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert "".join(event.delta for event in found if "text.delta" in event.type) == expected
    assert found[-1].type == "response.incomplete"
    form = {"type": "json_schema", "name": "hour", "schema": CLOCK["function"]["parameters"]}
    with client.responses.stream(input=USER, text={"format": form}, **RESPONSE) as stream:
        pieces = [each.delta for each in stream if each.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(pieces) == final.output_text
    assert final.status == "completed"


def test_a_response_with_tools(client: Any) -> None:
    made = checked(
        client.responses.create(
            input=USER, tools=[RESPONSE_CLOCK], tool_choice="required", **RESPONSE
        )
    )
    (call,) = made.output
    assert (call.type, call.name) == ("function_call", "clock")
    assert json.loads(call.arguments)["hour"] in (1, 2)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    more = {"max_output_tokens": 4, **RESPONSE}
    after = client.responses.create(previous_response_id=made.id, input=[result], **more)
    whole = client.responses.create(input=[*USER, call.to_dict(), result], store=False, **more)
    assert after.output_text == whole.output_text
    with client.responses.stream(
        input=USER, tools=[RESPONSE_CLOCK], tool_choice="required", **RESPONSE
    ) as stream:
        names = [event.type for event in stream]
        (again,) = stream.get_final_response().output
    assert again.arguments == call.arguments
    assert names.index("response.function_call_arguments.done") < names.index(
        "response.output_item.done"
    )


def test_a_response_of_a_form(client: Any) -> None:
    pydantic = pytest.importorskip("pydantic")
    form = pydantic.create_model("Hour", hour=(Literal[1, 2], ...), __config__={"extra": "forbid"})
    made = client.responses.parse(input=USER, text_format=form, max_output_tokens=100, **RESPONSE)
    assert isinstance(made.output_parsed, form)


def test_stored_responses(client: Any) -> None:
    more = {"max_output_tokens": 2, **RESPONSE}
    made = client.responses.create(input="Once", **more)
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(made.id)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(input="And", previous_response_id=made.id, **more)
    assert error.value.param == "previous_response_id"
    hidden = client.responses.create(input="Once", store=False, **more)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(hidden.id)


@pytest.mark.parametrize("path", ["/v1/images", "/v1/audio/speech"])
def test_other_apis_are_not_found_in_openais_shape(server: Server, path: str) -> None:
    answer = server.post(path, {}, headers={"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 404
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
