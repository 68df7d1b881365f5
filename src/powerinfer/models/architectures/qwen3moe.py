"""Qwen3 with experts (30B-A3B, 235B-A22B): the Qwen3 block with a mixture of experts."""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import (
    EXPERT_NAMES,
    HUGGING_FACE_NAMES,
    QK_NORM_NAMES,
    run_layer,
)
from powerinfer.models.checkpoints import windows
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules

__all__ = ["ARCHITECTURE"]


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    if config.integer("decoder_sparse_step", 1) != 1:
        raise config.unsupported("decoder_sparse_step", "1")
    if config.values.get("mlp_only_layers"):
        raise config.unsupported("mlp_only_layers", "none")
    is_normalized = config.flag("norm_topk_prob", default=False)
    return {} if is_normalized else {keys.EXPERT_WEIGHTS_NORMALIZED: False}


ARCHITECTURE = Architecture(
    name="qwen3moe",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES | QK_NORM_NAMES | EXPERT_NAMES,
    checkpoint=CheckpointRules(
        ("qwen3_moe",),
        config_names={"num_local_experts": ("num_experts",)},
        windows=windows.if_used,
        metadata=_metadata,
    ),
    is_rope_interleaved=False,
    qk_norm=QKNorm.HEAD,
    experts=ExpertRules(size_key=keys.EXPERT_SIZE),
)
