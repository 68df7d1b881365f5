"""The configuration of a checkpoint that is to become sparse, and what is refused."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerinfer.convert.checkpoint.checkpoint import read_json
from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.train.sparsify.ffn import ActivationName

__all__ = ["BAMBOO", "Source", "as_source", "read_source"]

BAMBOO = "bamboo"
"""The `model_type` of Llama- and Mistral-shaped checkpoints with dReLU."""

_LARGEST_CONFIG = 16 << 20
_ACTIVATIONS: dict[str, ActivationName] = {"silu": "silu", "swish": "silu", "relu": "relu"}
_BIASES = ("attention_bias", "mlp_bias")
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@dataclass(frozen=True)
class Source:
    """A configuration that `sparsify` can train.

    Attributes:
        values: all of the `config.json`, foreign keys too.
        kind: the class of transformers that computes it, `Llama` or `Mistral`.
    """

    values: Mapping[str, object]
    kind: str
    activation: ActivationName

    @property
    def arguments(self) -> dict[str, object]:
        """Arguments for transformers' configuration; its own activation is not used."""
        left_out = ("model_type", "architectures", "auto_map", "transformers_version")
        kept = {key: value for key, value in self.values.items() if key not in left_out}
        return kept | {"hidden_act": "silu"}


def read_source(folder: Path) -> Source:
    """Read the `config.json` of a checkpoint.

    Raises:
        CheckpointError: there is none, or a value has the wrong type.
        UnsupportedError: another architecture, experts, biases, another activation, or quantized
            weights.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected one with a config.json")
    path = folder / "config.json"
    return as_source(CheckpointConfig(path, read_json(path, _LARGEST_CONFIG, "configuration")))


def as_source(config: CheckpointConfig) -> Source:
    """Check a configuration; errors as those of `read_source`."""
    model_type = config.string("model_type")
    for key in _EXPERTS:
        if config.has(key):
            raise config.unsupported(key, "models without experts")
    if model_type not in ("llama", "mistral", BAMBOO):
        raise config.unsupported("model_type", f"llama, mistral, {BAMBOO}")
    if config.part("quantization_config").values:
        raise UnsupportedError(
            f"{config.path}: its weights are quantized; name the checkpoint they were made from"
        )
    for key in _BIASES:
        if config.flag(key, default=False):
            raise config.unsupported(key, "false, matrices without biases")
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        config.integer(key)
    has_window = model_type == "mistral" or (model_type == BAMBOO and config.has("sliding_window"))
    return Source(config.values, "Mistral" if has_window else "Llama", _activation(config))


def _activation(config: CheckpointConfig) -> ActivationName:
    if config.string("model_type") == BAMBOO:
        return "drelu"
    name = config.string("hidden_act", "silu")
    if name not in _ACTIVATIONS:
        raise config.unsupported("hidden_act", ", ".join(_ACTIVATIONS))
    return _ACTIVATIONS[name]
