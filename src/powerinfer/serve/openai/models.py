"""`/v1/models`: the model of this server."""

from powerinfer.serve.context import ServerContext
from powerinfer.serve.openai.options import unknown_model

__all__ = ["list_models", "show_model"]


def list_models(context: ServerContext) -> dict[str, object]:
    """List all models: the one of this server."""
    return {"object": "list", "data": [_model(context)]}


def show_model(context: ServerContext, name: str) -> dict[str, object]:
    """Describe a model.

    Raises:
        ApiError: 404, there is no such model.
    """
    if name not in context.settings.model_names:
        raise unknown_model(name, context)
    return _model(context)


def _model(context: ServerContext) -> dict[str, object]:
    """Describe the model; clients of llama-server read `meta`."""
    model = context.model
    meta: dict[str, object] = {
        "n_vocab": model.tokenizer.vocab_size,
        "n_ctx": model.context_length,
    }
    if model.loaded is not None:
        config = model.loaded.model.config
        meta |= {
            "vocab_type": 1 if model.tokenizer.model == "llama" else 2,
            "n_ctx_train": config.context_length,
            "n_embd": config.hidden_size,
            "size": sum(tensor.data.nbytes for tensor in model.loaded.file.tensors.values()),
        }
    return {
        "id": context.settings.model_name,
        "object": "model",
        "created": context.created,
        "owned_by": "powerinfer",
        "meta": meta,
    }
