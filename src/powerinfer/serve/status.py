"""`/health` for supervisors and `/metrics` for Prometheus."""

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from powerinfer.serve.context import ServerContext, ServerPhase

__all__ = ["router"]


def router(context: ServerContext) -> APIRouter:
    """Create the routes."""
    routes = APIRouter()

    # The lower decorators come first; the upper one is for the description only.
    @routes.get("/health")
    @routes.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    @routes.api_route("/v1/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> JSONResponse:
        """200 once the model is loaded, 503 before and while the server ends."""
        is_ready = context.phase is ServerPhase.READY
        return JSONResponse({"status": context.phase.value}, 200 if is_ready else 503)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """All figures."""
        context.measure()
        return Response(context.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return routes
