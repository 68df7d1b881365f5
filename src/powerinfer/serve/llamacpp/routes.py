"""The routes that llama-server has in addition to OpenAI's."""

from fastapi import APIRouter, Request, Response

from powerinfer.errors import PromptError
from powerinfer.prompts.prompts import read_ids
from powerinfer.serve import errors
from powerinfer.serve.bodies import read_object
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError, bad_request
from powerinfer.serve.fields import Fields
from powerinfer.serve.llamacpp.answer import NativeAnswer
from powerinfer.serve.llamacpp.request import read_native
from powerinfer.serve.llamacpp.schemas import COMPLETION_BODY, DETOKENIZE_BODY, TOKENIZE_BODY
from powerinfer.serve.llamacpp.settings import router_properties, server_properties
from powerinfer.serve.responding import answer
from powerinfer.serve.served_model import ModelContext
from powerinfer.tokenizer import Tokenizer
from powerinfer.values import JSONObject

__all__ = ["detokenize", "router", "tokenize"]


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()
    for path in ("/completion", "/tokenize", "/detokenize", "/props"):
        context.error_bodies[path] = _error_body
    # OpenAI's route, which has the same beginning.
    context.error_bodies["/completions"] = errors.error_body

    @routes.post("/completion", openapi_extra=COMPLETION_BODY)
    async def completion(request: Request) -> Response:
        """Go on with prompts."""
        return await answer(request, context, read_native, NativeAnswer)

    @routes.post("/tokenize", openapi_extra=TOKENIZE_BODY)
    async def tokens_of(request: Request) -> dict[str, object]:
        """Turn a text into tokens."""
        body = await read_object(request, context)
        async with context.model_of(body) as model:
            return await context.run_blocking(tokenize, body, model)

    @routes.post("/detokenize", openapi_extra=DETOKENIZE_BODY)
    async def text_of(request: Request) -> dict[str, str]:
        """Turn tokens into text."""
        body = await read_object(request, context)
        async with context.model_of(body) as model:
            return await context.run_blocking(detokenize, body, model)

    @routes.get("/props")
    async def properties(model: str | None = None) -> dict[str, object]:
        """Describe the model that the query names, or the only one; else the server alone.

        As llama-server does, which loads none of several models for it.
        """
        if not model and not context.models.is_one:
            return router_properties(len(context.models.models))
        async with context.models.using(await context.chosen(model)) as chosen:
            return server_properties(chosen)

    return routes


def _error_body(error: ApiError) -> dict[str, object]:
    """Build OpenAI's error object with the status as code; too long prompts have their own type."""
    body = errors.error_body(error)["error"]
    if error.code == "context_length_exceeded":
        body["type"] = "exceed_context_size_error"
    return {"error": {**body, "code": error.status}}


def tokenize(body: JSONObject, context: ModelContext) -> dict[str, object]:
    """Turn a text into token ids, with their pieces if requested."""
    fields, tokenizer = Fields(body), context.tokenizer
    token_ids = tokenizer.encode(
        fields.required_text("content"),
        add_bos=fields.switch("add_special") and tokenizer.add_bos,
        parse_special=fields.switch("parse_special", default=True),
    )
    if not fields.switch("with_pieces"):
        return {"tokens": token_ids}
    return {"tokens": [{"id": each, "piece": _piece(tokenizer, each)} for each in token_ids]}


def detokenize(body: JSONObject, context: ModelContext) -> dict[str, str]:
    """Turn token ids into text, including names of special tokens."""
    fields, tokenizer = Fields(body), context.tokenizer
    try:
        token_ids = read_ids(fields.items("tokens") or [], tokenizer.vocab_size)
    except PromptError as error:
        raise bad_request(f"tokens: {error}", "tokens", "invalid_value") from None
    pieces = b"".join(tokenizer.piece_bytes(each) for each in token_ids)
    return {"content": pieces.decode("utf-8", "replace")}


def _piece(tokenizer: Tokenizer, token_id: int) -> str | list[int]:
    """Text of a token, or its bytes if they are no complete characters."""
    piece = tokenizer.piece_bytes(token_id)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)
