"""LFM2 with experts (8B-A1B, 24B-A2B): the LFM2 block, experts from the third layer on.

Experts are chosen by the sigmoids of their logits plus a bias, and weighted by the sigmoids alone.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.lfm2 import (
    BLOCK_NAMES,
    CONFIG_NAMES,
    mixer_metadata,
    short_convs,
)
from powerinfer.models.architectures.llama import run_layer
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules
from powerinfer.ops.operands import RouterRule

__all__ = ["ARCHITECTURE"]

_MOE = "model.layers.{layer}.feed_forward"
_SIGMOID = 2


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    if config.number("routed_scaling_factor", 1.0) != 1.0:
        raise config.unsupported("routed_scaling_factor", "1")
    num_dense = config.values.get("num_dense_layers", 2)
    is_normalized = config.flag("norm_topk_prob", default=True)
    return (
        mixer_metadata(config)
        | {
            keys.EXPERT_GATING: _SIGMOID,
            keys.NUM_DENSE_LAYERS: config.integer("num_dense_layers") if num_dense else 0,
        }
        | ({} if is_normalized else {keys.EXPERT_WEIGHTS_NORMALIZED: False})
    )


ARCHITECTURE = Architecture(
    name="lfm2moe",
    run_layer=run_layer,
    hugging_face_names=BLOCK_NAMES
    | {
        "blk.{layer}.ffn_gate_inp": f"{_MOE}.gate",
        # With the suffix of biases this is `expert_bias`.
        "blk.{layer}.exp_probs_b": f"{_MOE}.expert",
        "blk.{layer}.ffn_gate_up_exps": f"{_MOE}.experts.gate_up_proj",
        "blk.{layer}.ffn_gate_exps": f"{_MOE}.experts.{{expert}}.w1",
        "blk.{layer}.ffn_up_exps": f"{_MOE}.experts.{{expert}}.w3",
        "blk.{layer}.ffn_down_exps": (
            f"{_MOE}.experts.down_proj",
            f"{_MOE}.experts.{{expert}}.w2",
        ),
    },
    checkpoint=CheckpointRules(
        ("lfm2_moe",),
        config_names=CONFIG_NAMES | {"num_local_experts": ("num_experts",)},
        hidden_act="silu",
        is_tied=True,
        rope_base=1e6,
        metadata=_metadata,
    ),
    is_rope_interleaved=False,
    norm_names={"output_norm": "token_embd_norm"},
    qk_norm=QKNorm.HEAD,
    state_mixers=short_convs,
    experts=ExpertRules(
        rule=RouterRule.SIGMOID,
        size_key=keys.EXPERT_SIZE,
        has_dense_layers=True,
        has_selection_bias=True,
    ),
)
