"""The routes of responses, with and without `/v1` as OpenAI's others."""

from collections.abc import Mapping

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import bad_request
from powerinfer.serve.responding import answer
from powerinfer.serve.responses.answer import ResponsesAnswer
from powerinfer.serve.responses.request import ResponsesRequest, read_request
from powerinfer.serve.responses.schemas import RESPONSES_BODY
from powerinfer.serve.responses.store import ResponseStore
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """Create the routes, and the store that they share."""
    routes = APIRouter()
    store = ResponseStore()

    def read(body: JSONObject, model: ModelContext) -> ResponsesRequest:
        return read_request(body, model, store)

    def begin(model: ModelContext, asked: ResponsesRequest) -> ResponsesAnswer:
        return ResponsesAnswer(model, asked, store)

    @routes.post("/v1/responses", openapi_extra=RESPONSES_BODY)
    @routes.post("/responses", include_in_schema=False)
    async def respond(request: Request) -> Response:
        """Answer the items of a conversation."""
        return await answer(request, context, read, begin, error_event="error")

    @routes.get("/v1/responses/{response_id}")
    @routes.get("/responses/{response_id}", include_in_schema=False)
    async def stored(request: Request, response_id: str) -> Response:
        """Return a stored response."""
        if request.query_params.get("stream", "false") != "false":
            text = "stream is not supported: stored responses are sent whole"
            raise bad_request(text, "stream", "unsupported_parameter")
        response: Mapping[str, object] = store.get(response_id).response
        return JSONResponse(response)

    @routes.delete("/v1/responses/{response_id}")
    @routes.delete("/responses/{response_id}", include_in_schema=False)
    async def delete(response_id: str) -> dict[str, object]:
        """Forget a stored response."""
        store.delete(response_id)
        return {"id": response_id, "object": "response", "deleted": True}

    return routes
