"""Declarations about a family's checkpoints."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.values import ActivationKind

__all__ = ["ACTIVATIONS", "CheckpointRules", "ExpertMatrices"]

ACTIVATIONS: Mapping[str, ActivationKind] = {
    "silu": ActivationKind.SILU,
    "swish": ActivationKind.SILU,
    # GGUF has one GELU, the tanh form; the erf form is close enough that llama.cpp uses it too.
    "gelu": ActivationKind.GELU,
    "gelu_new": ActivationKind.GELU,
    "gelu_pytorch_tanh": ActivationKind.GELU,
    "relu": ActivationKind.RELU,
    "drelu": ActivationKind.DRELU,
    "fatrelu": ActivationKind.FATRELU,
    "relu2": ActivationKind.RELU2,
}
"""Meaning of `hidden_act` in most families."""


@dataclass(frozen=True, slots=True)
class ExpertMatrices:
    """Layout of all experts' matrices in one tensor.

    Attributes:
        is_transposed: inputs are rows, outputs columns.
        is_interleaved: rows of gate and up alternate, gate first; else gate is the first half.
    """

    is_transposed: bool = False
    is_interleaved: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointRules:
    """Differences of a family's checkpoints from Llama's.

    Attributes:
        model_types: values of `model_type` in `config.json`.
        fits: tells families of one `model_type` apart.
        multimodal_types: the same of models of more than text, whose configuration has the text
            model's in `text_config`; `model.` begins with `model.language_model.` there.
        left_out: beginnings of the names of tensors that are not converted.
        config_names: Llama's names of configuration values to the family's.
        is_tied: default: the output head is the embedding.
        rotary_share: default share of a head that rotates.
        adds_one_to_norms: norms multiply by one plus the weight; GGUF files hold the sum.
        is_qkv_grouped: rows of a fused `attn_qkv` come in groups, one per key head: its queries,
            the key, the value.
        has_value_groups: value heads of linear attention come in groups, one per key head; files
            have the first of each group, then the second of each.
        has_selective_scans: some layers are selective scans.
        expert_matrices: layout of experts in one tensor.
        windows: returns a window flag per layer; None for no windows.
        metadata: returns the family's own keys without its prefix (`!` marks keys without one), and
            raises on configurations the engine cannot run.
    """

    model_types: tuple[str, ...]
    fits: Callable[[CheckpointConfig], bool] = field(default=lambda _: True, kw_only=True)
    multimodal_types: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    config_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    activations: Mapping[str, ActivationKind] = field(default_factory=lambda: ACTIVATIONS)
    hidden_act: str | None = None
    is_tied: bool = False
    rope_base: float = 10000.0
    rotary_share: float = 1.0
    context_length: int | None = None
    adds_one_to_norms: bool = False
    is_qkv_grouped: bool = False
    has_value_groups: bool = False
    has_selective_scans: bool = False
    expert_matrices: ExpertMatrices = ExpertMatrices()
    windows: Callable[[CheckpointConfig], list[bool] | None] = lambda _: None
    metadata: Callable[[CheckpointConfig], dict[str, object]] = lambda _: {}
