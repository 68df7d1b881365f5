"""Arcee (AFM): the Llama block with an ungated ReLU^2 FFN."""

from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.checkpoints.rules import CheckpointRules
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="arcee",
    run_layer=run_layer,
    hugging_face_names={
        ours: theirs for ours, theirs in HUGGING_FACE_NAMES.items() if "ffn_gate" not in ours
    },
    checkpoint=CheckpointRules(("arcee",)),
    activation=Activation(ActivationKind.RELU2),
    powerinfer_activation=Activation(ActivationKind.RELU2),
    is_gated=False,
)
