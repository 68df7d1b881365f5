"""The routes that llama-server has in addition to OpenAI's."""

from fastapi import APIRouter, Request, Response

from powerinfer.serve import errors
from powerinfer.serve.bodies import read_object
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError
from powerinfer.serve.llamacpp.answer import NativeAnswer
from powerinfer.serve.llamacpp.request import read_native
from powerinfer.serve.llamacpp.schemas import COMPLETION_BODY, DETOKENIZE_BODY, TOKENIZE_BODY
from powerinfer.serve.llamacpp.settings import server_properties
from powerinfer.serve.llamacpp.tokens import detokenize, tokenize
from powerinfer.serve.responding import answer

__all__ = ["router"]


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
        return await context.run_blocking(tokenize, body, context)

    @routes.post("/detokenize", openapi_extra=DETOKENIZE_BODY)
    async def text_of(request: Request) -> dict[str, str]:
        """Turn tokens into text."""
        body = await read_object(request, context)
        return await context.run_blocking(detokenize, body, context)

    @routes.get("/props")
    async def properties() -> dict[str, object]:
        """Describe the server."""
        return server_properties(context)

    return routes


def _error_body(error: ApiError) -> dict[str, object]:
    """Build OpenAI's error object with the status as code; too long prompts have their own type."""
    body = errors.error_body(error)["error"]
    if error.code == "context_length_exceeded":
        body["type"] = "exceed_context_size_error"
    return {"error": {**body, "code": error.status}}
