"""Bamboo (PowerInfer's sparse Mistral): the Llama block with dReLU (ReLU on gate and up).

Files store q and k for interleaved pairs, as `llama` files do.
"""

from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.models.checkpoints import windows
from powerinfer.models.checkpoints.rules import ACTIVATIONS, CheckpointRules
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="bamboo",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES,
    checkpoint=CheckpointRules(
        ("bamboo",),
        activations={**ACTIVATIONS, "relu": ActivationKind.DRELU},
        hidden_act="relu",
        windows=windows.all_layers,
    ),
    activation=Activation(ActivationKind.DRELU),
    powerinfer_activation=Activation(ActivationKind.DRELU),
)
