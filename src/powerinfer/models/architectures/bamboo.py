"""Bamboo (PowerInfer's sparse Mistral): the Llama block with dReLU, ReLU on gate and up.

Its files store q and k for interleaved pairs, as `llama` files do.
"""

from powerinfer.models.architecture import Architecture
from powerinfer.models.architectures.llama import HUGGING_FACE_NAMES, run_layer
from powerinfer.values import Activation, ActivationKind

__all__ = ["ARCHITECTURE"]

ARCHITECTURE = Architecture(
    name="bamboo",
    run_layer=run_layer,
    hugging_face_names=HUGGING_FACE_NAMES,
    activation=Activation(ActivationKind.DRELU),
    powerinfer_activation=Activation(ActivationKind.DRELU),
    is_rope_interleaved=True,
)
