"""OLMoE: the Llama block with RoPE over halves, norms of all of q and k, and many small experts.

Expert weights come from a softmax over all experts and are not renormalized.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, QKNorm
from powerinfer.models.architectures.llama import (
    EXPERT_NAMES,
    HUGGING_FACE_NAMES,
    QK_NORM_NAMES,
    run_layer,
)
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.models.experts import ExpertRules

__all__ = ["ARCHITECTURE"]


def _metadata(config: CheckpointConfig) -> dict[str, object]:
    if config.has("clip_qkv"):
        raise config.unsupported("clip_qkv", "null")
    is_normalized = config.flag("norm_topk_prob", default=False)
    return {keys.EXPERT_WEIGHTS_NORMALIZED: True} if is_normalized else {}


ARCHITECTURE = Architecture(
    name="olmoe",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES | QK_NORM_NAMES | EXPERT_NAMES,
    checkpoint=CheckpointRules(
        ("olmoe",), config_names={"num_local_experts": ("num_experts",)}, metadata=_metadata
    ),
    is_rope_interleaved=False,
    qk_norm=QKNorm.PROJECTION,
    experts=ExpertRules(is_normalized=False),
)
