"""The route of embeddings, with and without `/v1` as OpenAI's others."""

from fastapi import APIRouter, Request, Response

from powerinfer.serve.context import ServerContext
from powerinfer.serve.embeddings.answer import EmbeddingsAnswer
from powerinfer.serve.embeddings.request import read_request
from powerinfer.serve.embeddings.schemas import EMBEDDINGS_BODY
from powerinfer.serve.responding import answer

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """Create the route."""
    routes = APIRouter()

    @routes.post("/v1/embeddings", openapi_extra=EMBEDDINGS_BODY)
    @routes.post("/embeddings", include_in_schema=False)
    async def embeddings(request: Request) -> Response:
        """Embed texts as vectors."""
        return await answer(request, context, read_request, EmbeddingsAnswer)

    return routes
