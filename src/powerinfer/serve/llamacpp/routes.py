"""The routes that llama-server has in addition to OpenAI's."""

from fastapi import APIRouter, Request, Response

from powerinfer.serve import errors
from powerinfer.serve.bodies import read_object
from powerinfer.serve.context import ServerContext
from powerinfer.serve.llamacpp.answer import NativeAnswer
from powerinfer.serve.llamacpp.errors import error_body
from powerinfer.serve.llamacpp.request import read_native
from powerinfer.serve.llamacpp.schemas import COMPLETION_BODY, DETOKENIZE_BODY, TOKENIZE_BODY
from powerinfer.serve.llamacpp.settings import server_properties
from powerinfer.serve.llamacpp.tokens import detokenize, tokenize
from powerinfer.serve.responding import Answer, Reply

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()
    for path in ("/completion", "/tokenize", "/detokenize", "/props"):
        context.error_bodies[path] = error_body
    # OpenAI's route, which has the same beginning.
    context.error_bodies["/completions"] = errors.error_body

    @routes.post("/completion", openapi_extra=COMPLETION_BODY)
    async def completion(request: Request) -> Response:
        """Go on with prompts."""
        body = await read_object(request, context)

        async def work(reply: Reply) -> None:
            asked = await context.run_blocking(read_native, body, context)
            await NativeAnswer(context, asked)(reply)

        return Answer(context, work)

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
