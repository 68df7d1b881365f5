"""The package `langchain-ollama` on a server: chats, prompts, tools, forms, embeddings."""

import asyncio
from typing import Any

import pytest

from client_cases import KEY, MARKS, MODEL, NUM_TOKENS, PROMPT, Hour
from serving import Server

langchain = pytest.importorskip("langchain_ollama", reason="langchain_ollama is not installed")
messages = pytest.importorskip(
    "langchain_core.messages", reason="langchain_ollama is not installed"
)

pytestmark = MARKS


@pytest.fixture(scope="module")
def address(server: Server) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {KEY}"}
    return {"base_url": server.url, "model": MODEL, "client_kwargs": {"headers": headers}}


@pytest.fixture(scope="module")
def model(address: dict[str, Any]) -> Any:
    return langchain.ChatOllama(
        temperature=0, num_predict=NUM_TOKENS, validate_model_on_init=True, **address
    )


def test_a_chat(model: Any) -> None:
    made = model.invoke(PROMPT)
    assert made.text
    assert made.usage_metadata["output_tokens"] == NUM_TOKENS
    assert made.response_metadata["done_reason"] == "length"
    assert "".join(chunk.text for chunk in model.stream(PROMPT)) == made.text


def test_chats_side_by_side(model: Any) -> None:
    async def run() -> list[Any]:
        return list(await model.abatch([PROMPT] * 3))

    texts = {made.text for made in [*model.batch([PROMPT] * 3), *asyncio.run(run())]}
    assert texts == {model.invoke(PROMPT).text}


def test_reasoning_is_switched(model: Any) -> None:
    on, off = (
        model.model_copy(update={"reasoning": each}).invoke(PROMPT) for each in (True, False)
    )
    # The template closes the reasoning before the answer begins.
    assert off.usage_metadata["input_tokens"] > on.usage_metadata["input_tokens"]


def test_tools_and_their_results(model: Any) -> None:
    bound = model.bind_tools([Hour])
    call = {"name": "Hour", "args": {"hour": 1}, "id": "1"}
    talk: list[Any] = [messages.HumanMessage(PROMPT)]
    result = messages.ToolMessage("It is noon.", tool_call_id="1")
    after = [*talk, messages.AIMessage("", tool_calls=[call]), result]
    made = [model.invoke(talk), bound.invoke(talk), bound.invoke(after)]
    counts = [each.usage_metadata["input_tokens"] for each in made]
    assert counts == sorted(set(counts))


def test_a_form_of_the_answer(model: Any) -> None:
    longer = model.model_copy(update={"num_predict": 100})
    made = longer.with_structured_output(Hour, method="json_schema").invoke(PROMPT)
    assert isinstance(made, Hour)


def test_a_prompt(address: dict[str, Any]) -> None:
    model = langchain.OllamaLLM(temperature=0, num_predict=NUM_TOKENS, **address)
    made = model.invoke(PROMPT)
    assert made
    assert "".join(model.stream(PROMPT)) == made


def test_embeddings(address: dict[str, Any]) -> None:
    made = langchain.OllamaEmbeddings(**address)
    vectors = made.embed_documents(["Once", "The cat"])
    assert [len(vector) for vector in vectors] == [256, 256]
    assert made.embed_query("The cat") == vectors[1]


def test_a_model_that_is_not_there(address: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gpt-5"):
        langchain.ChatOllama(validate_model_on_init=True, **address | {"model": "gpt-5"})
