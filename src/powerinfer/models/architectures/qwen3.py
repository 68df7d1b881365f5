"""Qwen3: the Llama block with RoPE over halves and norms of the heads of q and k."""

from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, QK_NORM_NAMES, run_layer
from powerinfer.models.checkpoints import windows
from powerinfer.models.checkpoints.rules import CheckpointRules

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="qwen3",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES | QK_NORM_NAMES,
    checkpoint=CheckpointRules(("qwen3",), windows=windows.if_used),
    is_rope_interleaved=False,
    qk_norm=QKNorm.HEAD,
)
