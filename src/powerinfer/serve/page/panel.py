"""Figures of the live panel: the state of the engine as a JSON object."""

import time

from powerinfer.models import LayerShares
from powerinfer.serve.context import ServerContext

__all__ = ["panel_figures"]

_COUNTS = (
    "running",
    "waiting",
    "blocks",
    "blocks_used",
    "blocks_cached",
    "generated_tokens",
    "prompt_tokens",
    "cached_tokens",
)
"""Attributes of `EngineStatistics`; token counts are cumulative: rates are differences."""


def panel_figures(context: ServerContext) -> dict[str, object]:
    """Collect the current figures; null stands for figures that the engine does not have.

    Returns:
        `model` (name), `time` (seconds of a monotonic clock), the counts named above, and
        `layers`: `active` and `union`, each a share for every layer, see `LayerShares`.

    Raises:
        ApiError: 503, the model is not loaded yet.
    """
    statistics = context.model.engine.statistics()
    return {
        "model": context.settings.model_name,
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
