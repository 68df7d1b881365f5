"""The web application: all routes of the server, and errors in the form of each API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from powerinfer._version import __version__
from powerinfer.errors import PowerInferError
from powerinfer.serve import anthropic, embeddings, llamacpp, ollama, openai, page, responses
from powerinfer.serve.context import ServerContext, ServerPhase
from powerinfer.serve.errors import ApiError, from_engine
from powerinfer.serve.pooled_model import ModelState, PooledModel
from powerinfer.serve.security import Guard

__all__ = ["build_app"]


def build_app(context: ServerContext) -> FastAPI:
    """Create the application; `context` has its models, or gets one by `start`.

    The context is closed when the application ends.
    """

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        context.close()

    # FastAPI's documentation pages load scripts from other hosts.
    app = FastAPI(
        title="powerinfer", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    for router in (
        _status_router,
        openai.router,
        embeddings.router,
        responses.router,
        anthropic.router,
        llamacpp.router,
        ollama.router,
        page.router,
    ):
        app.include_router(router(context))
    _answer_errors(app, context)
    app.add_middleware(Guard, context=context)
    if context.settings.cors_origins:
        # Outside the guard, as a browser's preflight request has no key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=context.settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            # Client libraries in browsers send headers of their own.
            allow_headers=["*"],
            expose_headers=["Retry-After"],
        )
    return app


def _answer_errors(app: FastAPI, context: ServerContext) -> None:
    """Answer every error in the form that the clients of its path expect."""

    async def answer(request: Request, error: Exception) -> Response:
        return _api_error(request, error).response(context.error_body(request.url.path))

    async def gone(_request: Request, _error: Exception) -> Response:
        # Nobody reads this answer.
        return Response(status_code=499)

    app.add_exception_handler(ClientDisconnect, gone)
    for kind in (ApiError, PowerInferError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)


def _api_error(request: Request, error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, PowerInferError):
        return from_engine(error)
    if isinstance(error, HTTPException):
        return _of_routing(request, error)
    # Starlette raises it again, and the ASGI server logs it.
    return ApiError("the server failed on this request", status=500)


def _of_routing(request: Request, error: HTTPException) -> ApiError:
    """Describe a wrong path or method."""
    method, path = request.method, request.url.path
    headers = dict(error.headers or {})
    if error.status_code == 404:
        return ApiError(f"there is no {method} {path}", status=404, code="not_found")
    if error.status_code == 405:
        allowed = ", ".join(sorted(headers.get("Allow", headers.get("allow", "")).split(", ")))
        message = f"{path} takes {allowed}, not {method}"
        return ApiError(message, status=405, code="method_not_allowed", headers=headers)
    return ApiError(str(error.detail), status=error.status_code, headers=headers)


def _status_router(context: ServerContext) -> APIRouter:
    """`/health` for supervisors and `/metrics` for Prometheus."""
    routes = APIRouter()

    # The lower decorators come first; the upper one is for the description only.
    @routes.get("/health")
    @routes.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    @routes.api_route("/v1/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> JSONResponse:
        """200 once requests are answered, 503 before and while the server ends."""
        is_ready = context.phase is ServerPhase.READY
        body: dict[str, object] = {"status": context.phase.value}
        if not context.models.is_one:
            body["models"] = {model.name: _health_of(model) for model in context.models.models}
        return JSONResponse(body, 200 if is_ready else 503)

    @routes.get("/metrics")
    async def metrics() -> Response:
        """All figures."""
        context.models.measure()
        return Response(context.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    return routes


def _health_of(model: PooledModel) -> dict[str, object]:
    """Describe the state of a model, and how far its load is; why it failed is not for everyone."""
    body: dict[str, object] = {"status": model.state.value}
    if model.state is ModelState.LOADING:
        body["progress"] = round(model.progress, 3)
    return body
