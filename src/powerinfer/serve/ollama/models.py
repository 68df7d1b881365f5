"""What Ollama's API tells of the models: which there are, what they are, which are loaded."""

import time
from collections.abc import Mapping
from pathlib import Path

from powerinfer.errors import PowerInferError
from powerinfer.gguf import keys
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.context import ServerContext
from powerinfer.serve.fields import Fields
from powerinfer.serve.ollama.answer import timestamp
from powerinfer.serve.ollama.cards import TAG, Card, card_of, model_path, shown_name
from powerinfer.serve.pooled_model import PooledModel, Resident
from powerinfer.values import JSONObject

__all__ = ["find_model", "list_loaded", "list_models", "show_model", "with_served_name"]

# Ollama's time of a model that stays: the longest that it knows, 292 years.
_FOREVER_S = 292 * 365.25 * 86400
_PARAMETERS = (
    *("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "repeat_last_n"),
    *("presence_penalty", "frequency_penalty"),
)


async def find_model(context: ServerContext, name: str | None) -> PooledModel:
    """Find a model by one of its names, perhaps with the tag that clients add.

    Raises:
        ApiError: 400, the name is missing or empty; 404, there is no such model.
    """
    if not name:
        fields = Fields({"model": name})
        fields.required("model")
        raise fields.fault("model", " is empty")
    await context.models.refresh(name.removesuffix(TAG))
    names = {each for model in context.models.models for each in model.settings.model_names}
    untagged = name.removesuffix(TAG)
    is_tagged = name not in names and untagged in names
    return context.models.find(untagged if is_tagged else name, "model")


async def with_served_name(
    context: ServerContext, body: JSONObject
) -> tuple[PooledModel, JSONObject]:
    """Find the model of a request; returns it, and the body with a name that all routes know."""
    found = await find_model(context, Fields(body).text("model"))
    return found, {**body, "model": found.name}


async def list_models(context: ServerContext) -> dict[str, object]:
    """Build the answer of `/api/tags`."""
    await context.models.refresh()
    return {"models": [await _entry(context, each) for each in context.models.models]}


async def list_loaded(context: ServerContext) -> dict[str, object]:
    """Build the answer of `/api/ps`."""
    listed = []
    for model in context.models.models:
        if (resident := model.resident) is not None:
            length = resident.context.model.context_length
            # It may be gone once its card was read.
            loaded = {"expires_at": _expiry(resident), "size_vram": 0, "context_length": length}
            entry = await _entry(context, model)
            del entry["modified_at"]
            listed.append({**entry, **loaded})
    return {"models": listed}


async def show_model(context: ServerContext, model: PooledModel) -> dict[str, object]:
    """Build the answer of `/api/show`."""
    card = await context.run_blocking(card_of, model)
    is_story_model = model.settings.is_story_model
    length = await _context_length(context, model)
    parameters = _parameters(model.settings.sampling, length)
    return {
        "modelfile": _modelfile(model, parameters),
        "parameters": "\n".join(f"{name:<30} {value}" for name, value in parameters.items()),
        "template": card.template,
        "details": card.details(),
        "model_info": _model_info(card, length),
        "capabilities": card.capabilities(is_story_model=is_story_model),
        "modified_at": _modified_at(context, model_path(model)),
    }


def _model_info(card: Card, context_length: int | None) -> dict[str, object]:
    """List the file's metadata, with the context that is served: clients ask for what it says."""
    info: dict[str, object] = {**card.info, "general.parameter_count": card.num_parameters}
    if card.family and context_length is not None:
        info[f"{card.family}.{keys.CONTEXT_LENGTH}"] = context_length
    return info


async def _entry(context: ServerContext, model: PooledModel) -> dict[str, object]:
    card: Card = await context.run_blocking(card_of, model)
    return {
        "name": shown_name(model),
        "model": shown_name(model),
        "modified_at": _modified_at(context, model_path(model)),
        "size": card.num_bytes,
        "digest": card.digest,
        "details": card.details(),
    }


def _modified_at(context: ServerContext, path: Path | None) -> str:
    """Write the time of a file; the server's start if it is not there."""
    try:
        return timestamp(context.created if path is None else path.stat().st_mtime)
    except OSError:
        return timestamp(context.created)


def _expiry(resident: Resident) -> str:
    """Write when a model leaves, if nobody uses it until then."""
    stay_s = _FOREVER_S if resident.keep_alive_s is None else resident.keep_alive_s
    unused_s = 0.0 if resident.num_users else time.monotonic() - resident.used_at
    return timestamp(time.time() - unused_s + stay_s)


async def _context_length(context: ServerContext, model: PooledModel) -> int | None:
    if model.resident is not None:
        return model.resident.context.model.context_length
    if model.source is None:
        return None
    try:
        return (await context.run_blocking(model.source.facts)).context_length
    except PowerInferError:
        # Its card is empty, too.
        return None


def _parameters(sampling: SamplingParams, context_length: int | None) -> dict[str, object]:
    """List what requests leave out, by Ollama's names."""
    length: Mapping[str, object] = {} if context_length is None else {"num_ctx": context_length}
    return {**length, **{name: getattr(sampling, name) for name in _PARAMETERS}}


def _modelfile(model: PooledModel, parameters: Mapping[str, object]) -> str:
    lines = [f"PARAMETER {name} {value}" for name, value in parameters.items()]
    return "\n".join([f"FROM {model_path(model) or model.name}", *lines, ""])
