"""Loads a server's models, each with room for the keys and values of all its texts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from powerinfer.engine.engine import Engine
from powerinfer.loading import loader
from powerinfer.loading.loader import Progress
from powerinfer.loading.memory_needs import needed_bytes
from powerinfer.models import ModelFile, default_context
from powerinfer.options.llm_options import LLMOptions
from powerinfer.options.options import MOST_KV_TOKENS, EngineOptions, engine_options
from powerinfer.serve.model_source import ModelFacts
from powerinfer.serve.served_model import ServedModel

if TYPE_CHECKING:
    from powerinfer.offload.progress import PlacementProgress

__all__ = ["facts_reader", "load_served"]


def load_served(
    path: Path | None,
    options: LLMOptions,
    *,
    progress: Progress | None = None,
    downloading: Progress | None = None,
    calibrating: Progress | None = None,
    placing: "PlacementProgress | None" = None,
) -> ServedModel:
    """Load a model, as `LLM` does; without `kv_tokens` every text may fill its context.

    Models of one process share a team of threads, unless a GPU takes part.
    """
    checked = engine_options(**options)
    opened = loader.open_model(path, checked, downloading)
    checked = _with_room(opened, checked)
    loaded = loader.load(opened, checked, progress, calibrating, placing, joins_team=True)
    return ServedModel(
        engine=Engine(loaded),
        tokenizer=loaded.tokenizer,
        context_length=loaded.model.context_length,
        loaded=loaded,
    )


def facts_reader(path: Path, options: LLMOptions) -> Callable[[], ModelFacts]:
    """Make a function that reads what is known of a model before it is loaded; it raises, too."""
    checked = engine_options(**options)

    def read() -> ModelFacts:
        opened = loader.open_model(path, checked)
        return ModelFacts(
            weight_bytes=sum(tensor.data.nbytes for tensor in opened.file.tensors.values()),
            needed_bytes=needed_bytes(opened, _with_room(opened, checked)),
            context_length=checked.context_length or default_context(opened.config),
            trained_length=opened.config.context_length,
        )

    return read


def _with_room(opened: ModelFile, options: EngineOptions) -> EngineOptions:
    """Make room for the contexts of all texts, unless `kv_tokens` says how much."""
    if options.kv_tokens is not None:
        return options
    per_text = options.context_length or default_context(opened.config)
    # More than the option allows is more than any memory holds, as the loader then says.
    return replace(options, kv_tokens=min(options.parallel * per_text, MOST_KV_TOKENS))
