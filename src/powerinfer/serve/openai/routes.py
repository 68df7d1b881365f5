"""The routes of OpenAI's API, with and without `/v1` as llama-server has them."""

from fastapi import APIRouter, Request, Response

from powerinfer.serve.bodies import read_object
from powerinfer.serve.context import ServerContext
from powerinfer.serve.openai.chat import ChatAnswer
from powerinfer.serve.openai.chat_request import read_chat
from powerinfer.serve.openai.completion_request import read_completion
from powerinfer.serve.openai.completions import CompletionAnswer
from powerinfer.serve.openai.models import list_models, show_model
from powerinfer.serve.openai.schemas import CHAT_BODY, COMPLETION_BODY
from powerinfer.serve.responding import Answer, Reply

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()

    @routes.post("/v1/chat/completions", openapi_extra=CHAT_BODY)
    @routes.post("/chat/completions", include_in_schema=False)
    async def chat(request: Request) -> Response:
        """Answer the messages of a chat."""
        body = await read_object(request, context)

        async def work(reply: Reply) -> None:
            await ChatAnswer(context, await context.run_blocking(read_chat, body, context))(reply)

        return Answer(context, work)

    @routes.post("/v1/completions", openapi_extra=COMPLETION_BODY)
    @routes.post("/completions", include_in_schema=False)
    async def completions(request: Request) -> Response:
        """Go on with prompts."""
        body = await read_object(request, context)

        async def work(reply: Reply) -> None:
            asked = await context.run_blocking(read_completion, body, context)
            await CompletionAnswer(context, asked)(reply)

        return Answer(context, work)

    @routes.get("/v1/models")
    @routes.get("/models", include_in_schema=False)
    async def models() -> dict[str, object]:
        """List the models."""
        return list_models(context)

    @routes.get("/v1/models/{name:path}")
    @routes.get("/models/{name:path}", include_in_schema=False)
    async def model(name: str) -> dict[str, object]:
        """Describe one model."""
        return show_model(context, name)

    return routes
