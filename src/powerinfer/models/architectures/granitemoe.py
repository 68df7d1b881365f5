"""Granite with experts (3.0 and 3.1, 1B-A400M and 3B-A800M): Mixtral's block with four scales.

The embedding, what blocks add to the residual stream, scores and logits are scaled by keys of the
file. Some models have an expert that runs for every token.
"""

from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import EXPERT_NAMES, HUGGING_FACE_NAMES, run_layer
from powerinfer.models.experts import ExpertRules

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="granitemoe",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES
    | {
        ours: theirs.replace(".mlp.gate", ".mlp.router").replace(".mlp.", ".block_sparse_moe.")
        for ours, theirs in EXPERT_NAMES.items()
    },
    is_rope_interleaved=True,
    experts=ExpertRules(),
)
