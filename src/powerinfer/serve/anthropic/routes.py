"""The routes of Anthropic's API."""

from fastapi import APIRouter, Request, Response

from powerinfer.serve.anthropic.answer import MessagesAnswer
from powerinfer.serve.anthropic.request import read_request
from powerinfer.serve.anthropic.schemas import COUNT_BODY, MESSAGES_BODY
from powerinfer.serve.bodies import read_object
from powerinfer.serve.chat.plan import plan_chat
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError
from powerinfer.serve.responding import answer
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["router"]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()
    context.error_bodies["/v1/messages"] = _error_body

    @routes.post("/v1/messages", openapi_extra=MESSAGES_BODY)
    async def messages(request: Request) -> Response:
        """Answer messages."""
        return await answer(request, context, read_request, MessagesAnswer, error_event="error")

    @routes.post("/v1/messages/count_tokens", openapi_extra=COUNT_BODY)
    async def count_tokens(request: Request) -> dict[str, int]:
        """Count the tokens of a prompt."""
        body = await read_object(request, context)
        async with context.model_of(body) as model:
            return {"input_tokens": await context.run_blocking(_count, body, model)}

    return routes


def _count(body: JSONObject, context: ModelContext) -> int:
    asked = read_request(body, context, needs_limit=False)
    return len(plan_chat(context, asked.chat).prompt_ids)


def _error_body(error: ApiError) -> dict[str, object]:
    """Build the object of an error; its type follows from the status."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, fallback)
    return {"type": "error", "error": {"type": kind, "message": error.message}}
