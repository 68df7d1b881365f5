"""Qwen2 and Qwen2.5: the Llama block with biases on q, k and v and RoPE over halves."""

from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.checkpoints import windows
from powerinfer.models.checkpoints.rules import CheckpointRules

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="qwen2",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES,
    checkpoint=CheckpointRules(("qwen2",), windows=windows.if_used),
    is_rope_interleaved=False,
    required_biases=frozenset({"attn_q", "attn_k", "attn_v"}),
)
