"""Directions of a predictor's input that decide about neurons, where training can start from."""

import numpy as np

from powerinfer.gguf import GGUFFile
from powerinfer.models import Model
from powerinfer.models.architecture import NormKind
from powerinfer.values import ActivationKind, FloatArray

__all__ = ["deciding_directions"]


def deciding_directions(model: Model, file: GGUFFile, number: int) -> FloatArray | None:
    """Rows of the matrices that decide whether a layer's neurons fire, seen through the norm.

    A predictor looks at what the norm in front of the FFN gets. The norm's length does not change
    signs, so the sign of a product with such a row is that of the gate, up to biases.

    Args:
        model: without experts.
        file: of the model.
        number: of the layer.

    Returns:
        f32[num_directions, hidden_size]; None where the norm follows the FFN.
    """
    if model.config.is_post_norm:
        return None
    layer = model.weights.layers[number]
    names = ["ffn_up"] if layer.ffn.gate is None else ["ffn_gate"]
    if layer.ffn.gate is not None and model.config.activation.kind is ActivationKind.DRELU:
        names.append("ffn_up")
    found = [file.tensor(f"blk.{number}.{name}.weight").decode() for name in names]
    rows = np.concatenate(found) * model.ops.vector_values(layer.ffn_input_norm.weight)
    if layer.ffn_input_norm.kind is NormKind.LAYER:
        rows -= rows.mean(axis=1, keepdims=True)
    directions: FloatArray = rows
    return directions
