"""Granite with experts (3.0 and 3.1, 1B-A400M and 3B-A800M): Mixtral's block with four scales.

Keys of the file scale the embedding, the output of blocks, scores and logits. Some models have a
shared expert.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules

__all__ = ["ARCHITECTURE", "scale_metadata"]

_MOE = "model.layers.{layer}.block_sparse_moe"
_SHARED = "model.layers.{layer}.shared_mlp"

_SCALES = {
    keys.EMBEDDING_SCALE: "embedding_multiplier",
    keys.RESIDUAL_SCALE: "residual_multiplier",
    keys.ATTENTION_SCALE: "attention_multiplier",
    keys.LOGIT_SCALE: "logits_scaling",
}


def scale_metadata(config: CheckpointConfig) -> dict[str, object]:
    """Keys of a checkpoint's scales."""
    return {key: config.number(name, 1.0) for key, name in _SCALES.items()}


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    found = scale_metadata(config)
    if config.values.get("shared_intermediate_size"):
        found[keys.SHARED_EXPERT_SIZE] = config.integer("shared_intermediate_size")
    return found


ARCHITECTURE = Architecture(
    name="granitemoe",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES
    | {
        "blk.{layer}.ffn_gate_inp": (f"{_MOE}.router", f"{_MOE}.router.layer"),
        "blk.{layer}.ffn_gate_up_exps": (f"{_MOE}.experts.gate_up_proj", f"{_MOE}.input_linear"),
        "blk.{layer}.ffn_down_exps": (f"{_MOE}.experts.down_proj", f"{_MOE}.output_linear"),
        "blk.{layer}.ffn_gate_up_shexp": f"{_SHARED}.input_linear",
        "blk.{layer}.ffn_down_shexp": f"{_SHARED}.output_linear",
    },
    checkpoint=CheckpointRules(("granitemoe", "granitemoeshared"), metadata=_metadata),
    experts=ExpertRules(),
)
