"""Qwen3.5 and 3.6 with experts (35B-A3B): the Qwen3.5 block with a mixture of experts.

A shared expert runs for every token, weighted by the sigmoid of its own gate.
"""

from dataclasses import replace

from powerinfer.gguf import keys
from powerinfer.models.architectures import qwen35
from powerinfer.models.architectures.llama import EXPERT_NAMES
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.experts import ExpertRules

__all__ = ["ARCHITECTURE"]

_MLP = "model.layers.{layer}.mlp"


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    shared = {keys.SHARED_EXPERT_SIZE: config.integer("shared_expert_intermediate_size")}
    return qwen35.checkpoint_metadata(config) | shared


ARCHITECTURE = replace(
    qwen35.ARCHITECTURE,
    name="qwen35moe",
    hugging_face_names=qwen35.MIXER_NAMES
    | EXPERT_NAMES
    | {
        "blk.{layer}.ffn_gate_inp_shexp": f"{_MLP}.shared_expert_gate",
        "blk.{layer}.ffn_gate_shexp": f"{_MLP}.shared_expert.gate_proj",
        "blk.{layer}.ffn_up_shexp": f"{_MLP}.shared_expert.up_proj",
        "blk.{layer}.ffn_down_shexp": f"{_MLP}.shared_expert.down_proj",
    },
    checkpoint=replace(
        qwen35.ARCHITECTURE.checkpoint,
        model_types=("qwen3_5_moe_text",),
        multimodal_types=("qwen3_5_moe",),
        config_names={"num_local_experts": ("num_experts",)},
        metadata=_metadata,
    ),
    experts=ExpertRules(size_key=keys.EXPERT_SIZE, has_shared_gate=True),
)
