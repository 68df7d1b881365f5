# The file is named after the value of `general.architecture`.
# ruff: noqa: N999
"""gpt-oss: experts with clamped SwiGLU, attention sinks, windows in every other layer, biases.

The norm of the FFN's input is called `post_attention_norm`. YaRN does not round the borders of its
ramp: configurations say so (`truncate`), files have no key for it, and llama.cpp rounds.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.attention import WindowPattern
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules, ExpertMatrices
from powerinfer.models.checkpoints.windows import by_layer_types
from powerinfer.models.experts import ExpertRules
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

_MLP = "model.layers.{layer}.mlp"


def _windows(config: CheckpointConfig) -> list[bool]:
    return by_layer_types(config, period=2)


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    for name, only in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)):
        if config.number(name, only) != only:
            raise config.unsupported(name, f"{only:g}")
    return {}


ARCHITECTURE = Architecture(
    name="gpt-oss",
    run_layer=run_layer,
    hugging_face_names={
        ours: theirs for ours, theirs in HUGGING_FACE_NAMES.items() if "ffn_norm" not in ours
    }
    | {
        "blk.{layer}.post_attention_norm": "model.layers.{layer}.post_attention_layernorm",
        "blk.{layer}.attn_sinks": "model.layers.{layer}.self_attn.sinks",
        "blk.{layer}.ffn_gate_inp": f"{_MLP}.router",
        "blk.{layer}.ffn_gate_up_exps": f"{_MLP}.experts.gate_up_proj",
        "blk.{layer}.ffn_down_exps": f"{_MLP}.experts.down_proj",
    },
    checkpoint=CheckpointRules(
        ("gpt_oss",),
        activations={"silu": ActivationKind.CLAMPED_SWIGLU},
        hidden_act="silu",
        rope_base=150000.0,
        expert_matrices=ExpertMatrices(is_transposed=True, is_interleaved=True),
        windows=_windows,
        metadata=_metadata,
    ),
    activation=Activation(ActivationKind.CLAMPED_SWIGLU),
    powerinfer_activation=Activation(ActivationKind.CLAMPED_SWIGLU),
    is_rope_interleaved=False,
    rounds_yarn_ramp=False,
    norm_names={"ffn_norm": "post_attention_norm"},
    has_attention_sinks=True,
    windows=WindowPattern(period=2),
    experts=ExpertRules(size_key=keys.EXPERT_SIZE),
    required_biases=frozenset(
        {
            *("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"),
            *("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps", "ffn_down_exps"),
        }
    ),
)
