"""What a family's file in `models/architectures` declares about its checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.values import ActivationKind

__all__ = ["ACTIVATIONS", "CheckpointRules", "ExpertMatrices"]

ACTIVATIONS: Mapping[str, ActivationKind] = {
    "silu": ActivationKind.SILU,
    "swish": ActivationKind.SILU,
    # GGUF has one GELU, the tanh form; that with erf is so near that llama.cpp takes it for it too.
    "gelu": ActivationKind.GELU,
    "gelu_new": ActivationKind.GELU,
    "gelu_pytorch_tanh": ActivationKind.GELU,
    "relu": ActivationKind.RELU,
    "drelu": ActivationKind.DRELU,
    "fatrelu": ActivationKind.FATRELU,
    "relu2": ActivationKind.RELU2,
}
"""Values of `hidden_act`, and what they mean in most families."""


def _nothing(_config: CheckpointConfig) -> dict[str, object]:
    return {}


def _no_windows(_config: CheckpointConfig) -> None:
    return None


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """How checkpoints hold the matrices of all experts in one tensor.

    Attributes:
        is_transposed: inputs are rows, outputs columns.
        is_interleaved: rows of gate and up alternate, gate first; else gate is the first half.
    """

    is_transposed: bool = False
    is_interleaved: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """How a family's checkpoints differ from what Llama's are.

    Attributes:
        model_types: values of `model_type` in `config.json`.
        config_names: Llama's names of configuration values, and theirs.
        activations: values of `hidden_act`, and what they mean.
        hidden_act: where the configuration does not say.
        is_tied: the embedding is the output head, where the configuration does not say.
        rope_base: where the configuration does not say.
        rotary_share: of a head, where the configuration does not say.
        context_length: where the configuration does not say.
        adds_one_to_norms: norms multiply by one plus the weight; files hold the sum.
        is_qkv_grouped: of a fused `attn_qkv` the rows come in groups, one for each key head: its
            queries, the key, the value.
        expert_matrices: how experts are held in one tensor.
        windows: of each layer whether it has a window; None where the model has none.
        metadata: keys of the family, without its prefix; one that begins with `!` has none. It
            also refuses, by an error, what the engine cannot run.
    """

    model_types: tuple[str, ...]
    config_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    activations: Mapping[str, ActivationKind] = field(default_factory=lambda: ACTIVATIONS)
    hidden_act: str | None = None
    is_tied: bool = False
    rope_base: float = 10000.0
    rotary_share: float = 1.0
    context_length: int | None = None
    adds_one_to_norms: bool = False
    is_qkv_grouped: bool = False
    expert_matrices: ExpertMatrices = ExpertMatrices()
    windows: Callable[[CheckpointConfig], list[bool] | None] = _no_windows
    metadata: Callable[[CheckpointConfig], dict[str, object]] = _nothing
