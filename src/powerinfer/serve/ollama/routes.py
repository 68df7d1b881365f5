"""The routes of Ollama's API."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from powerinfer._version import __version__
from powerinfer.serve.bodies import read_object
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError
from powerinfer.serve.fields import Fields
from powerinfer.serve.ollama.answer import ChatAnswer, GenerateAnswer, timestamp
from powerinfer.serve.ollama.embedding import (
    EmbedAnswer,
    EmbedRequest,
    read_embed,
    read_embeddings,
)
from powerinfer.serve.ollama.models import (
    find_model,
    list_loaded,
    list_models,
    show_model,
    with_served_name,
)
from powerinfer.serve.ollama.options import read_keep_alive
from powerinfer.serve.ollama.request import OllamaRequest, read_chat, read_generate
from powerinfer.serve.ollama.schemas import CHAT_BODY, EMBED_BODY, GENERATE_BODY, SHOW_BODY
from powerinfer.serve.responding import Reply, answer_body
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["router"]

T = TypeVar("T")

_OLLAMA_VERSION = "0.12.11"
"""Version of Ollama whose API this is; applications refuse versions that lack what they use."""

_COMMANDS = {
    "/api/push": "this server publishes no models",
    "/api/create": "give `powerinfer serve` the model file with -m, settings as flags",
    "/api/copy": "name a model with `powerinfer serve --alias NAME`",
    "/api/delete": "remove models with `powerinfer rm NAME`",
}
"""Routes that change the models of an Ollama server, and what does that here."""


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()
    context.error_bodies["/api/"] = _error_body

    @routes.post("/api/chat", openapi_extra=CHAT_BODY)
    async def chat(request: Request) -> Response:
        """Answer the messages of a chat."""
        return await _generated(request, context, "messages", read_chat, ChatAnswer)

    @routes.post("/api/generate", openapi_extra=GENERATE_BODY)
    async def generate(request: Request) -> Response:
        """Answer a prompt."""
        return await _generated(request, context, "prompt", read_generate, GenerateAnswer)

    @routes.post("/api/embed", openapi_extra=EMBED_BODY)
    async def embed(request: Request) -> Response:
        """Embed texts as vectors of length 1."""
        return await _embedded(request, context, read_embed)

    @routes.post("/api/embeddings", include_in_schema=False)
    async def embeddings(request: Request) -> Response:
        """Embed a text as a vector; the older form."""
        return await _embedded(request, context, read_embeddings)

    routes.include_router(_model_routes(context))
    return routes


def _model_routes(context: ServerContext) -> APIRouter:
    """Create the routes that tell of models."""
    routes = APIRouter()

    @routes.get("/api/tags")
    @routes.api_route("/api/tags", methods=["GET", "HEAD"], include_in_schema=False)
    async def tags() -> dict[str, object]:
        """List the models."""
        return await list_models(context)

    @routes.get("/api/ps")
    async def loaded() -> dict[str, object]:
        """List the models that are loaded."""
        return await list_loaded(context)

    @routes.post("/api/show", openapi_extra=SHOW_BODY)
    async def show(request: Request) -> dict[str, object]:
        """Describe a model."""
        fields = Fields(await read_object(request, context))
        # Older clients write `name`.
        name = fields.text("model") or fields.text("name")
        return await show_model(context, await find_model(context, name))

    @routes.get("/api/version")
    @routes.api_route("/api/version", methods=["GET", "HEAD"], include_in_schema=False)
    async def version() -> dict[str, str]:
        """Tell the versions of the API and of this server."""
        return {"version": _OLLAMA_VERSION, "powerinfer": __version__}

    @routes.post("/api/pull", include_in_schema=False)
    async def pull(request: Request) -> dict[str, str]:
        """Tell whether a model is here, which many applications make sure of at their start."""
        fields = Fields(await read_object(request, context))
        await _check_pulled(context, fields.text("model") or fields.text("name"))
        return {"status": "success"}

    for path, advice in _COMMANDS.items():
        method = "DELETE" if path == "/api/delete" else "POST"
        refusal = partial(_refuse, f"{path} is not supported: {advice}")
        routes.add_api_route(path, refusal, methods=[method], include_in_schema=False)
    return routes


async def _generated(
    request: Request,
    context: ServerContext,
    input_field: str,
    read: Callable[[JSONObject, ModelContext], OllamaRequest],
    new_answer: type[ChatAnswer] | type[GenerateAnswer],
) -> Response:
    """Answer a request that a text answers, or that loads or unloads a model."""
    began_at = time.monotonic_ns()
    given = await read_object(request, context)
    if not given.get(input_field) and read_keep_alive(Fields(given)) == 0:
        model, _ = await with_served_name(context, given)
        await context.models.unload(model)
        return JSONResponse(_unloaded(given, input_field))
    return await _answered(given, began_at, context, read, new_answer)


async def _embedded(
    request: Request,
    context: ServerContext,
    read: Callable[[JSONObject, ModelContext], EmbedRequest],
) -> Response:
    began_at = time.monotonic_ns()
    given = await read_object(request, context)
    return await _answered(given, began_at, context, read, EmbedAnswer)


async def _answered(
    given: JSONObject,
    began_at: int,
    context: ServerContext,
    read: Callable[[JSONObject, ModelContext], T],
    new_answer: Callable[..., Callable[[Reply], Awaitable[None]]],
) -> Response:
    """Answer a request with its model, which stays for the time that the request says."""
    model, body = await with_served_name(context, given)
    stay_s = read_keep_alive(Fields(given))

    def begin(chosen: ModelContext, asked: T) -> Callable[[Reply], Awaitable[None]]:
        if stay_s is not None:
            context.models.keep(model, stay_s)
        return new_answer(chosen, asked, model=given["model"], began_at=began_at)

    return answer_body(body, context, read, begin)


def _unloaded(given: JSONObject, input_field: str) -> dict[str, object]:
    is_chat = input_field == "messages"
    said = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    head = {"model": given["model"], "created_at": timestamp()}
    return {**head, **said, "done": True, "done_reason": "unload"}


def _error_body(error: ApiError) -> dict[str, object]:
    return {"error": error.message}


async def _check_pulled(context: ServerContext, name: str | None) -> None:
    try:
        await find_model(context, name)
    except ApiError as error:
        if error.status != 404:
            raise
        advice = "this server fetches none: use `powerinfer pull NAME`"
        if context.models.find_sources is None:
            advice += " and start it again"
        raise ApiError(f"{error.message}; {advice}", status=404, code=error.code) from None


async def _refuse(message: str) -> Response:
    raise ApiError(message, status=400, code="unsupported")
