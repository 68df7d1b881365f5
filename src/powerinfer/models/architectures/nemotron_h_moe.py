"""Nemotron 3 with experts (Nano 30B-A3B, Super): Nemotron-H with experts in the place of FFNs.

A router chooses by the sigmoids of its logits plus a bias, and weighs by the sigmoids alone,
divided by their sum and scaled. Experts are ungated; they may work in a latent space (Super). A
shared one always sees the input itself. Numbers of neurons and of experts used may differ by layer
(Puzzle; the checkpoint's `block_configs`). Blocks that predict further tokens come last and are not
run.
"""

from dataclasses import replace

import numpy as np

from powerinfer.gguf import keys
from powerinfer.models.architectures import nemotron_h
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.experts import ExpertRules
from powerinfer.ops.operands import RouterRule

__all__ = ["ARCHITECTURE"]

_NAMES = {
    "blk.{layer}.ffn_gate_inp": ("gate",),
    # With the suffix of biases this is `e_score_correction_bias`.
    "blk.{layer}.exp_probs_b": ("gate.e_score_correction",),
    "blk.{layer}.ffn_latent_down": ("fc1_latent_proj",),
    "blk.{layer}.ffn_latent_up": ("fc2_latent_proj",),
    "blk.{layer}.ffn_up_exps": ("experts.up_proj", "experts.{expert}.up_proj"),
    "blk.{layer}.ffn_down_exps": ("experts.down_proj", "experts.{expert}.down_proj"),
    "blk.{layer}.ffn_up_shexp": ("shared_experts.up_proj",),
    "blk.{layer}.ffn_down_shexp": ("shared_experts.down_proj",),
}


def _block_sizes(config: CheckpointConfig) -> dict[str, object]:
    """Keys of what the layers of a Puzzle checkpoint have in different numbers.

    Raises:
        UnsupportedError: also the number of experts differs.
    """
    count = config.integer("num_local_experts")
    sizes: list[int] = []
    used: list[int] = []
    for block in nemotron_h.blocks_of(config):
        if block.integer("n_routed_experts", count) != count:
            raise block.unsupported("n_routed_experts", f"{count}, as in the other layers")
        has_experts = block.string("block_type") == "moe"
        sizes.append(block.integer("moe_intermediate_size") if has_experts else 0)
        used.append(block.integer("num_experts_per_tok") if has_experts else 0)
    return nemotron_h.mixer_metadata(config, sizes) | {
        keys.EXPERT_SIZE: np.array(sizes, np.int32),
        keys.NUM_USED_EXPERTS: np.array(used, np.int32),
    }


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    if config.integer("n_group", 1) != 1:
        raise config.unsupported("n_group", "1")
    layers = (
        _block_sizes(config)
        if nemotron_h.blocks_of(config)
        else nemotron_h.mixer_metadata(config, config.integer("moe_intermediate_size"))
    )
    found = layers | {
        keys.SHARED_EXPERT_SIZE: config.integer("moe_shared_expert_intermediate_size"),
        keys.EXPERT_WEIGHTS_NORMALIZED: config.flag("norm_topk_prob", default=True),
        keys.EXPERT_WEIGHTS_SCALE: config.number("routed_scaling_factor", 1.0),
    }
    if config.has("moe_latent_size"):
        found[keys.EXPERT_LATENT_SIZE] = config.integer("moe_latent_size")
    return found


ARCHITECTURE = replace(
    nemotron_h.ARCHITECTURE,
    name="nemotron_h_moe",
    hugging_face_names={
        ours: theirs for ours, theirs in nemotron_h.HUGGING_FACE_NAMES.items() if "ffn_" not in ours
    }
    | {
        ours: tuple(
            f"{outer}.{nemotron_h.MIXER}.{own}" for outer in nemotron_h.OUTER for own in names
        )
        for ours, names in _NAMES.items()
    },
    checkpoint=replace(
        nemotron_h.ARCHITECTURE.checkpoint,
        model_types=("nemotron_h", "nemotron_h_puzzle"),
        fits=nemotron_h.has_experts,
        config_names=dict(nemotron_h.ARCHITECTURE.checkpoint.config_names)
        | {"num_local_experts": ("n_routed_experts",)},
        metadata=_metadata,
    ),
    experts=ExpertRules(
        rule=RouterRule.SIGMOID, size_key=keys.EXPERT_SIZE, has_selection_bias=True
    ),
)
