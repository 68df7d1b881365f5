"""What the live panel shows: how the engine is doing, as one JSON object."""

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
"""Of `EngineStatistics`; counts of tokens are since the start, so that rates are differences."""


def panel_figures(context: ServerContext) -> dict[str, object]:
    """Figures of now; null stands for what this engine does not count.

    Returns:
        `model` (name), `time` (seconds of a clock that never jumps), the counts named above, and
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
