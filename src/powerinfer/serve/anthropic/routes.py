"""The routes of Anthropic's API."""

from fastapi import APIRouter, Request, Response

from powerinfer.serve.anthropic.answer import MessagesAnswer
from powerinfer.serve.anthropic.errors import error_body
from powerinfer.serve.anthropic.request import read_request
from powerinfer.serve.anthropic.schemas import COUNT_BODY, MESSAGES_BODY
from powerinfer.serve.bodies import read_object
from powerinfer.serve.chat.plan import plan_chat
from powerinfer.serve.context import ServerContext
from powerinfer.serve.responding import Answer, Reply
from powerinfer.values import JSONObject

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()
    context.error_bodies["/v1/messages"] = error_body

    @routes.post("/v1/messages", openapi_extra=MESSAGES_BODY)
    async def messages(request: Request) -> Response:
        """Answer messages."""
        body = await read_object(request, context)

        async def work(reply: Reply) -> None:
            asked = await context.run_blocking(read_request, body, context)
            await MessagesAnswer(context, asked)(reply)

        return Answer(context, work, error_event="error")

    @routes.post("/v1/messages/count_tokens", openapi_extra=COUNT_BODY)
    async def count_tokens(request: Request) -> dict[str, int]:
        """Count the tokens of a prompt."""
        body = await read_object(request, context)
        return {"input_tokens": await context.run_blocking(_count, body, context)}

    return routes


def _count(body: JSONObject, context: ServerContext) -> int:
    asked = read_request(body, context, needs_limit=False)
    return len(plan_chat(context, asked.chat).prompt_ids)
