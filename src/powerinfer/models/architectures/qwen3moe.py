"""Qwen3 with experts (30B-A3B, 235B-A22B): Qwen3's block with a mixture in the FFN's place."""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import (
    EXPERT_NAMES,
    HUGGING_FACE_NAMES,
    QK_NORM_NAMES,
    run_layer,
)
from powerinfer.models.experts import ExpertRules

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="qwen3moe",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES | QK_NORM_NAMES | EXPERT_NAMES,
    is_rope_interleaved=False,
    qk_norm=QKNorm.HEAD,
    experts=ExpertRules(size_key=keys.EXPERT_SIZE),
)
