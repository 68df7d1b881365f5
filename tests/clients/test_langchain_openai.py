"""The package `langchain-openai` on a server: chats, responses, completions, tools, embeddings."""

import asyncio
from typing import Any

import pytest

from client_cases import KEY, MARKS, MODEL, NUM_TOKENS, PROMPT, Hour
from serving import Server

langchain = pytest.importorskip("langchain_openai", reason="langchain_openai is not installed")
messages = pytest.importorskip(
    "langchain_core.messages", reason="langchain_openai is not installed"
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def settings(server: Server) -> dict[str, Any]:
    return {
        "base_url": f"{server.url}/v1",
        "api_key": KEY,
        "model": MODEL,
        "temperature": 0,
        "max_tokens": NUM_TOKENS,
        "max_retries": 0,
    }


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def model(settings: dict[str, Any], request: pytest.FixtureRequest) -> Any:
    """A model of one of the two APIs."""
    return langchain.ChatOpenAI(use_responses_api=request.param, stream_usage=True, **settings)


@pytest.fixture(scope="module")
def longer(model: Any) -> Any:
    """The same, for answers that end by themselves."""
    return model.model_copy(update={"max_tokens": 100})


def test_a_chat(model: Any) -> None:
    made = model.invoke(PROMPT)
    assert made.text
    assert made.usage_metadata["output_tokens"] == NUM_TOKENS
    chunks = list(model.stream(PROMPT))
    assert "".join(chunk.text for chunk in chunks) == made.text
    assert sum(chunks[1:], chunks[0]).usage_metadata["output_tokens"] == NUM_TOKENS


def test_both_apis_side_by_side(settings: dict[str, Any]) -> None:
    # One loop for all: the connections of one that has ended would be used again.
    models = [langchain.ChatOpenAI(use_responses_api=each, **settings) for each in (False, True)]

    async def run() -> list[Any]:
        return await asyncio.gather(*(model.ainvoke(PROMPT) for model in models * 3))

    made = [*asyncio.run(run()), *(model.invoke(PROMPT) for model in models)]
    assert len({each.text for each in made}) == 1


def test_a_talk(model: Any) -> None:
    talk: list[Any] = [messages.SystemMessage("Tell stories."), messages.HumanMessage(PROMPT)]
    first = model.invoke(talk)
    second = model.invoke([*talk, first, messages.HumanMessage("And then?")])
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["total_tokens"]


def test_a_stored_response_goes_on(settings: dict[str, Any]) -> None:
    model = langchain.ChatOpenAI(
        use_responses_api=True, use_previous_response_id=True, store=True, **settings
    )
    talk = [messages.HumanMessage(PROMPT)]
    talk = [*talk, model.invoke(talk), messages.HumanMessage("And then?")]
    whole = model.model_copy(update={"use_previous_response_id": False}).invoke(talk)
    assert model.invoke(talk).text == whole.text


def test_a_tool_that_must_be_called(longer: Any) -> None:
    bound = longer.bind_tools([Hour], tool_choice="Hour", strict=True)
    made = bound.invoke(PROMPT)
    (call,) = made.tool_calls
    assert call["name"] == "Hour"
    assert Hour.model_validate(call["args"])
    chunks = list(bound.stream(PROMPT))
    assert sum(chunks[1:], chunks[0]).tool_calls[0]["args"] == call["args"]
    result = messages.ToolMessage("It is noon.", tool_call_id=call["id"])
    after = longer.bind_tools([Hour]).invoke([messages.HumanMessage(PROMPT), made, result])
    assert after.usage_metadata["input_tokens"] > made.usage_metadata["input_tokens"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_form_of_the_answer(method: str, longer: Any) -> None:
    made = longer.with_structured_output(Hour, method=method).invoke(PROMPT)
    assert isinstance(made, Hour)


def test_log_probabilities(settings: dict[str, Any]) -> None:
    model = langchain.ChatOpenAI(logprobs=True, top_logprobs=2, **settings)
    logprobs = model.invoke(PROMPT).response_metadata["logprobs"]["content"]
    assert [len(token["top_logprobs"]) for token in logprobs] == [2] * NUM_TOKENS


def test_a_completion(settings: dict[str, Any], expected: str) -> None:
    model = langchain.OpenAI(**settings)
    assert model.invoke(PROMPT) == expected
    assert "".join(model.stream(PROMPT)) == expected
    assert model.batch([PROMPT, PROMPT]) == [expected] * 2


def test_embeddings(settings: dict[str, Any]) -> None:
    made = langchain.OpenAIEmbeddings(
        # Otherwise it sends token ids of another model.
        check_embedding_ctx_length=False,
        **{name: settings[name] for name in ("base_url", "api_key", "model", "max_retries")},
    )
    vectors = made.embed_documents(["Once", "The cat"])
    assert [len(vector) for vector in vectors] == [256, 256]
    assert made.embed_query("The cat") == vectors[1]


def test_errors_are_those_of_the_client(settings: dict[str, Any]) -> None:
    openai = pytest.importorskip("openai", reason="openai is not installed")
    with pytest.raises(openai.NotFoundError):
        langchain.ChatOpenAI(**settings | {"model": "gpt-5"}).invoke(PROMPT)
    with pytest.raises(openai.AuthenticationError):
        langchain.ChatOpenAI(**settings | {"api_key": "wrong"}).invoke(PROMPT)
    with pytest.raises(openai.BadRequestError, match="context"):
        langchain.ChatOpenAI(**settings).invoke("word " * 2000)
