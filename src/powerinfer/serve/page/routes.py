"""The page at `/`, its files, and the figures of its live panel."""

import time

from fastapi import APIRouter, Request, Response

from powerinfer.models import LayerShares
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError
from powerinfer.serve.page.files import PageFile, PageFiles
from powerinfer.serve.pooled_model import PooledModel

__all__ = ["router"]

_COUNTS = (
    "running",
    "waiting",
    "blocks",
    "blocks_used",
    "blocks_cached",
    "states",
    "states_used",
    "states_cached",
    "generated_tokens",
    "prompt_tokens",
    "cached_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "text_steps",
)
"""Attributes of `EngineStatistics`; token counts are cumulative: rates are differences."""


def router(context: ServerContext) -> APIRouter:
    """Create the routes; the page and its files need no API key, `/panel` does."""
    routes = APIRouter(include_in_schema=False)
    files = PageFiles(context.settings)
    context.public_paths.add("/page/")

    @routes.api_route("/", methods=["GET", "HEAD"])
    async def index(request: Request) -> Response:
        """The page."""
        await context.models.refresh()
        first = context.models.models[0].settings
        return _answer(request, files.index(is_story_model=first.is_story_model))

    @routes.api_route("/page/{version}/{name:path}", methods=["GET", "HEAD"])
    async def file(request: Request, version: str, name: str) -> Response:
        """A script, a style sheet or a picture of the page."""
        found = files.find(version, name)
        if found is None:
            raise ApiError(f"there is no {request.url.path}", status=404, code="not_found")
        return _answer(request, found)

    @routes.get("/panel")
    async def panel(model: str | None = None) -> dict[str, object]:
        """Figures of the first model's engine, or of the one that the query names."""
        chosen = await context.chosen(model)
        if context.models.is_one:
            context.models.check_loaded()
        return await context.run_blocking(panel_figures, chosen)

    return routes


def _answer(request: Request, file: PageFile) -> Response:
    if request.headers.get("If-None-Match") == file.headers["ETag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, media_type=file.media_type, headers=file.headers)


def panel_figures(model: PooledModel) -> dict[str, object]:
    """Collect the current figures; null stands for figures that the engine does not have.

    Of a model that is not loaded there are none.

    Returns:
        `model` (name), `time` (seconds of a monotonic clock), the counts named above, and
        `layers`: `active` and `union`, each a share for every layer, see `LayerShares`.
    """
    resident = model.resident
    statistics = None if resident is None else resident.context.model.engine.statistics()
    return {
        "model": model.name,
        "time": time.monotonic(),
        **{name: getattr(statistics, name, None) for name in _COUNTS},
        "layers": _layers(getattr(statistics, "layers", None)),
    }


def _layers(shares: LayerShares | None) -> dict[str, list[float]] | None:
    if shares is None:
        return None
    return {
        "active": [round(share, 4) for share in shares.active.tolist()],
        "union": [round(share, 4) for share in shares.union.tolist()],
    }
