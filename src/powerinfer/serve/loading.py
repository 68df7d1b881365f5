"""Loads a server's model, with room for the keys and values of all its texts."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from powerinfer.engine.engine import Engine
from powerinfer.loading import loader
from powerinfer.loading.loader import Progress
from powerinfer.models import default_context
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.options import MOST_KV_TOKENS, engine_options
from powerinfer.serve.context import ServedModel

if TYPE_CHECKING:
    from powerinfer.offload.progress import PlacementProgress

__all__ = ["load_served"]


def load_served(
    path: Path | None,
    options: LLMOptions,
    *,
    progress: Progress | None = None,
    downloading: Progress | None = None,
    calibrating: Progress | None = None,
    placing: "PlacementProgress | None" = None,
) -> ServedModel:
    """Load a model, as `LLM` does; without `kv_tokens` every text may fill its context."""
    checked = engine_options(**options)
    opened = loader.open_model(path, checked, downloading)
    if checked.kv_tokens is None:
        per_text = checked.context_length or default_context(opened.config)
        # More than the option allows is more than any memory holds, as the loader then says.
        wanted = min(checked.parallel * per_text, MOST_KV_TOKENS)
        checked = replace(checked, kv_tokens=wanted)
    loaded = loader.load(opened, checked, progress, calibrating, placing)
    return ServedModel(
        engine=Engine(loaded),
        tokenizer=loaded.tokenizer,
        context_length=loaded.model.context_length,
        loaded=loaded,
    )
