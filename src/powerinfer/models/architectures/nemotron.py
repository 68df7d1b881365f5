"""Nemotron and Minitron: the Llama block with LayerNorm, partial RoPE and an ungated ReLU^2 FFN.

LayerNorm multiplies by one plus the weight ("LayerNorm1p"); GGUF files store the sum. RoPE rotates
the first `rope.dimension_count` elements of a head, in halves.
"""

from powerinfer.models.architecture import Architecture, NormKind
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="nemotron",
    run_layer=run_layer,
    hugging_face_names={
        ours: theirs for ours, theirs in HUGGING_FACE_NAMES.items() if "ffn_gate" not in ours
    },
    checkpoint=CheckpointRules(
        ("nemotron",),
        config_names={"rms_norm_eps": ("norm_eps",)},
        hidden_act="relu2",
        rotary_share=0.5,
        adds_one_to_norms=True,
    ),
    activation=Activation(ActivationKind.RELU2),
    powerinfer_activation=Activation(ActivationKind.RELU2),
    is_rope_interleaved=False,
    norm=NormKind.LAYER,
    is_gated=False,
)
