"""SmallThinker (PowerInfer's own): ReGLU experts, chosen before the attention of their layer runs.

The router sees the residual stream as the layer gets it, not normalised. In files with a window
(21B) one layer of four sees everything and does not rotate; in files without (4B) all layers do
both. The window is the file's; llama.cpp takes 4096, which published files have, whatever they say.
"""

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.attention import WindowPattern
from powerinfer.models.experts import ExpertRules
from powerinfer.ops.operands import RouterRule
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="smallthinker",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES
    | {"blk.{layer}.ffn_gate_inp": "model.layers.{layer}.block_sparse_moe.primary_router"},
    activation=Activation(ActivationKind.RELU),
    is_rope_interleaved=False,
    is_routed_by_layer_input=True,
    windows=WindowPattern(period=4, is_global_first=True, has_global_rope=False),
    experts=ExpertRules(rule=RouterRule.SIGMOID, size_key=keys.EXPERT_SIZE),
)
