"""Translation of a checkpoint's configuration to the metadata of a model file."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from powerinfer import _plugins
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys
from powerinfer.models.activation import activation_metadata, fatrelu
from powerinfer.models.architecture import Architecture, architecture_names, get_architecture
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rope import rope_metadata
from powerinfer.values import Activation, ActivationKind

__all__ = [
    "architecture_of_checkpoint",
    "checkpoint_activation",
    "is_tied",
    "model_metadata",
    "named_for",
]


def architecture_of_checkpoint(config: CheckpointConfig) -> Architecture:
    """Find the family of a checkpoint's `model_type`.

    Raises:
        UnsupportedError: unknown type; the message lists the known ones.
    """
    model_type = config.string("model_type")
    known: list[str] = []
    for name in architecture_names():
        architecture = get_architecture(name)
        rules = architecture.checkpoint
        types = (*rules.model_types, *rules.multimodal_types)
        if model_type in types and rules.fits(config):
            return architecture
        known += types
    where = f"{config.path}: model_type"
    raise _plugins.unsupported(where, model_type, tuple(sorted(known)))


def model_metadata(config: CheckpointConfig, architecture: Architecture) -> dict[str, object]:
    """Metadata of a model by full key, without its tokenizer.

    Args:
        config: checkpoint configuration with the names of its family (`named_for`).

    Raises:
        CheckpointError: a value is missing or has the wrong type.
        UnsupportedError: the engine cannot run such a model.
    """
    rules = architecture.checkpoint
    own = rules.metadata(config)
    head_dim = _head_dim(config) if architecture.has_attention else 0
    found = _sizes(config, architecture, head_dim, own)
    found |= rope_metadata(config, architecture, head_dim)
    found |= _windows(config, architecture)
    activation = checkpoint_activation(config, architecture)
    found |= {f"!{key}": value for key, value in activation_metadata(activation).items()}
    found |= own
    return {keys.ARCHITECTURE: architecture.name} | {
        key[1:] if key.startswith("!") else keys.of_architecture(architecture.name, key): value
        for key, value in found.items()
    }


def named_for(config: CheckpointConfig, architecture: Architecture) -> CheckpointConfig:
    """Copy a configuration with the names of a family; of a multimodal one, the text model's."""
    rules = architecture.checkpoint
    if config.string("model_type") in rules.multimodal_types:
        # The text model's own values count.
        config = replace(config, values={**config.values, **config.part("text_config").values})
    return replace(config, names=rules.config_names)


def checkpoint_activation(config: CheckpointConfig, architecture: Architecture) -> Activation:
    """Return the activation of the FFN.

    Raises:
        UnsupportedError: unknown activation; the message lists the known ones.
    """
    rules = architecture.checkpoint
    name = config.string("hidden_act", rules.hidden_act)
    if name not in rules.activations:
        known = tuple(sorted(rules.activations))
        raise _plugins.unsupported(f"{config.path}: activation", name, known)
    kind = rules.activations[name]
    if kind is not ActivationKind.FATRELU:
        return Activation(kind)
    try:
        return fatrelu(config.number("hidden_act_param"))
    except UnsupportedError as error:
        raise config.error("hidden_act_param", str(error)) from None


def is_tied(config: CheckpointConfig, architecture: Architecture) -> bool:
    """Return whether the output head is the embedding."""
    return config.flag("tie_word_embeddings", default=architecture.checkpoint.is_tied)


def _head_dim(config: CheckpointConfig) -> int:
    hidden_size, num_heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    if not config.has("head_dim") and hidden_size % num_heads:
        raise config.error(
            "num_attention_heads", f"expected a divisor of hidden_size {hidden_size}"
        )
    return config.integer("head_dim", hidden_size // num_heads)


def _sizes(
    config: CheckpointConfig, architecture: Architecture, head_dim: int, own: Mapping[str, object]
) -> dict[str, object]:
    found: dict[str, object] = {
        keys.VOCAB_SIZE: config.integer("vocab_size"),
        keys.CONTEXT_LENGTH: config.integer(
            "max_position_embeddings", architecture.checkpoint.context_length
        ),
        keys.HIDDEN_SIZE: config.integer("hidden_size"),
        keys.NUM_LAYERS: own.get(keys.NUM_LAYERS) or config.integer("num_hidden_layers"),
    }
    eps = {architecture.norm_eps_key: config.number("rms_norm_eps", architecture.norm_eps)}
    if not architecture.has_attention:
        # llama.cpp requires both.
        return found | eps | {keys.NUM_HEADS: 0, keys.INTERMEDIATE_SIZE: 0}
    num_heads = config.integer("num_attention_heads")
    found |= {
        keys.NUM_HEADS: num_heads,
        keys.NUM_KV_HEADS: config.integer("num_key_value_heads", num_heads),
        keys.HEAD_DIM: head_dim,
        keys.VALUE_DIM: head_dim,
        **eps,
    }
    # Dense models of some families with experts say that they have none of them.
    if config.number("num_local_experts", 0.0):
        found |= _experts(config, architecture, own)
    elif keys.INTERMEDIATE_SIZE not in own:
        found[keys.INTERMEDIATE_SIZE] = config.integer("intermediate_size")
    return found


def _experts(
    config: CheckpointConfig, architecture: Architecture, own: Mapping[str, object]
) -> dict[str, object]:
    if architecture.experts is None:
        raise config.unsupported("num_local_experts", f"none in {architecture.name} models")
    size_key, found = architecture.experts.size_key, dict[str, object]()
    if size_key not in own:
        is_own = config.has("moe_intermediate_size")
        size = config.integer("moe_intermediate_size" if is_own else "intermediate_size")
        # llama.cpp requires it even for models whose experts have their own size.
        found[keys.INTERMEDIATE_SIZE] = config.integer("intermediate_size", size)
        found[size_key] = size
    found[keys.NUM_EXPERTS] = config.integer("num_local_experts")
    if keys.NUM_USED_EXPERTS not in own:
        found[keys.NUM_USED_EXPERTS] = config.integer("num_experts_per_tok")
    return found


def _windows(config: CheckpointConfig, architecture: Architecture) -> dict[str, object]:
    flags = architecture.checkpoint.windows(config)
    if flags is None or not any(flags):
        return {}
    found: dict[str, object] = {keys.SLIDING_WINDOW: config.integer("sliding_window")}
    if flags != architecture.windows.flags(len(flags)):
        found[keys.SLIDING_WINDOW_PATTERN] = np.array(flags)
    return found
