"""Settings in llama-server's form, for `/props` and answers of `/completion`."""

from powerinfer._version import __version__
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.served_model import ModelContext

__all__ = ["generation_settings", "router_properties", "server_properties"]


def generation_settings(params: SamplingParams) -> dict[str, object]:
    """Write sampling parameters under llama-server's names."""
    limit = -1 if params.max_tokens is None else params.max_tokens
    return {
        "seed": -1 if params.seed is None else params.seed,
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_last_n": params.repeat_last_n,
        "repeat_penalty": params.repeat_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop_strings),
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": params.ignore_eos,
        "n_probs": params.logprobs or 0,
        "grammar": params.grammar or "",
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
    }


def server_properties(context: ModelContext) -> dict[str, object]:
    """Build the object of `/props`."""
    model, settings = context.model, context.settings
    tokenizer = model.tokenizer
    return {
        "default_generation_settings": {
            "n_ctx": model.context_length,
            "params": generation_settings(settings.sampling),
        },
        "total_slots": settings.parallel,
        "model_alias": settings.model_name,
        "model_path": settings.model_name,
        "modalities": {"vision": False, "audio": False},
        "chat_template": tokenizer.chat_template or "",
        "bos_token": "" if tokenizer.bos_id is None else tokenizer.piece(tokenizer.bos_id),
        "eos_token": "" if tokenizer.eos_id is None else tokenizer.piece(tokenizer.eos_id),
        "build_info": f"powerinfer {__version__}",
        "is_sleeping": False,
    }


def router_properties(num_models: int) -> dict[str, object]:
    """Build the object of `/props` for a server of several models, none of which was named."""
    return {
        "role": "router",
        "max_instances": num_models,
        "models_autoload": True,
        "model_alias": "powerinfer",
        "model_path": "none",
        "default_generation_settings": {"n_ctx": 0, "params": {}},
        "build_info": f"powerinfer {__version__}",
    }
