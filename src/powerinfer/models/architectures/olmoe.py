"""OLMoE: the Llama block with RoPE over halves, norms of all of q and k, and many small experts.

The weights of its experts are those of a softmax over all of them, not normalised.
"""

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
    name="olmoe",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES | QK_NORM_NAMES | EXPERT_NAMES,
    is_rope_interleaved=False,
    qk_norm=QKNorm.PROJECTION,
    experts=ExpertRules(is_normalized=False),
)
