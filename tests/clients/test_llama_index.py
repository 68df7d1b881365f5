"""LlamaIndex's classes for servers of OpenAI's and of Ollama's API on a server."""

import asyncio
from typing import Any

import pytest

from client_cases import CONTEXT, KEY, MARKS, MODEL, NUM_TOKENS, PROMPT, Hour
from serving import Server


def imported(module: str) -> Any:
    return pytest.importorskip(f"llama_index.{module}", reason="llama_index is not installed")


core = imported("core.llms")
tools = imported("core.tools")
like = imported("llms.openai_like")
ollama = imported("llms.ollama")
like_embeddings = imported("embeddings.openai_like")
ollama_embeddings = imported("embeddings.ollama")

pytestmark = MARKS

KINDS = ["openai", "ollama"]
TALK = [core.ChatMessage(role="user", content=PROMPT)]


def model(server: Server, kind: str, num_tokens: int = NUM_TOKENS, **settings: Any) -> Any:
    """A model of LlamaIndex, of OpenAI's or of Ollama's API."""
    settings = {"model": MODEL, "temperature": 0, "context_window": CONTEXT, **settings}
    if kind == "openai":
        settings = {"is_chat_model": True, "is_function_calling_model": True, **settings}
        return like.OpenAILike(
            api_base=f"{server.url}/v1",
            api_key=KEY,
            max_tokens=num_tokens,
            max_retries=0,
            **settings,
        )
    return ollama.Ollama(
        base_url=server.url,
        headers={"Authorization": f"Bearer {KEY}"},
        additional_kwargs={"num_predict": num_tokens},
        **settings,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_chat(kind: str, server: Server) -> None:
    llm = model(server, kind)
    made = llm.chat(TALK).message.content
    assert made
    assert "".join(part.delta or "" for part in llm.stream_chat(TALK)) == made
    assert llm.complete(PROMPT).text == made
    assert "".join(part.delta or "" for part in llm.stream_complete(PROMPT)) == made

    async def run() -> list[Any]:
        return await asyncio.gather(*(llm.achat(TALK) for _ in range(3)))

    assert [each.message.content for each in asyncio.run(run())] == [made] * 3


def test_both_apis_give_the_same(server: Server) -> None:
    answers = {kind: model(server, kind).chat(TALK).message.content for kind in KINDS}
    assert answers["openai"] == answers["ollama"]


def test_the_context_is_asked_for(server: Server) -> None:
    settings = {"base_url": server.url, "headers": {"Authorization": f"Bearer {KEY}"}}
    llm = ollama.Ollama(model=MODEL, additional_kwargs={"num_predict": 4}, **settings)
    assert llm.chat(TALK).raw["eval_count"] == 4
    assert llm.metadata.context_window == CONTEXT


def test_a_completion(server: Server, expected: str) -> None:
    llm = model(server, "openai", is_chat_model=False)
    assert llm.complete(PROMPT).text == expected
    assert "".join(part.delta for part in llm.stream_complete(PROMPT)) == expected


def test_a_tool_that_must_be_called(server: Server) -> None:
    llm = model(server, "openai", num_tokens=100)
    tool = tools.FunctionTool.from_defaults(
        lambda hour: f"It is {hour}.", name="clock", description="Tells", fn_schema=Hour
    )
    made = llm.chat_with_tools([tool], PROMPT, tool_required=True)
    (call,) = llm.get_tool_calls_from_response(made)
    assert call.tool_name == "clock"
    assert Hour.model_validate(call.tool_kwargs)
    result = core.ChatMessage(
        role="tool", content="noon", additional_kwargs={"tool_call_id": call.tool_id}
    )
    assert llm.chat_with_tools([tool], chat_history=[*TALK, made.message, result]).message


@pytest.mark.parametrize("kind", KINDS)
def test_a_form_of_the_answer(kind: str, server: Server) -> None:
    made = model(server, kind, num_tokens=100).as_structured_llm(Hour).complete(PROMPT)
    assert isinstance(made.raw, Hour)


def test_a_form_as_a_schema(server: Server) -> None:
    llm = model(server, "openai", num_tokens=100, should_use_structured_outputs=True)
    assert isinstance(llm.as_structured_llm(Hour).complete(PROMPT).raw, Hour)


def test_embeddings(server: Server) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    found = [
        made.get_text_embedding_batch(["Once", "The cat"])
        for made in (
            like_embeddings.OpenAILikeEmbedding(
                model_name=MODEL, api_base=f"{server.url}/v1", api_key=KEY
            ),
            ollama_embeddings.OllamaEmbedding(
                model_name=MODEL, base_url=server.url, client_kwargs={"headers": headers}
            ),
        )
    ]
    assert [len(vector) for vector in found[0]] == [256, 256]
    assert found[0] == found[1]
