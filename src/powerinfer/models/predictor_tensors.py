"""The predictor matrices that PowerInfer files carry, checked: `fc1` and `fc2` of every layer.

Ranks differ from layer to layer; the shapes of the tensors give them. In `opt` files these names
are the predictor's, not OPT's own fc1 and fc2.
"""

import math

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, keys
from powerinfer.models.config import ModelConfig

__all__ = ["MLPTensors", "find_predictors", "predictor_threshold"]

MLPTensors = tuple[Tensor, Tensor]
"""fc1 [rank, hidden_size] and fc2 [intermediate_size, rank] of one layer."""


def find_predictors(file: GGUFFile, config: ModelConfig) -> tuple[MLPTensors, ...]:
    """The predictors of all layers, in order; empty for a file without any.

    Raises:
        GGUFError: some layers have one and others do not, or a shape is wrong; names the tensor.
    """
    names = [(f"blk.{n}.fc1.weight", f"blk.{n}.fc2.weight") for n in range(config.num_layers)]
    if not any(name in file.tensors for pair in names for name in pair):
        return ()
    return tuple((_fc1(file, config, fc1), _fc2(file, config, fc1, fc2)) for fc1, fc2 in names)


def predictor_threshold(file: GGUFFile) -> float:
    """Score at or above which the file's predictors call a neuron active; 0 if the file has none.

    Raises:
        GGUFError: the key is no number, or NaN.
    """
    threshold = file.get_float(keys.SPARSE_THRESHOLD, 0.0)
    if math.isnan(threshold):
        raise GGUFError(
            f"{file.path}: key {keys.SPARSE_THRESHOLD} is NaN; expected the score at or above "
            "which a neuron is active"
        )
    return threshold


def _fc1(file: GGUFFile, config: ModelConfig, name: str) -> Tensor:
    tensor = _tensor(file, name)
    if len(tensor.shape) != 2 or tensor.shape[1] != config.hidden_size or tensor.shape[0] < 1:
        raise GGUFError(
            f"{file.path}: tensor {name} has the shape {list(tensor.shape)}; expected "
            f"[rank, {config.hidden_size}]"
        )
    return tensor


def _fc2(file: GGUFFile, config: ModelConfig, fc1: str, name: str) -> Tensor:
    tensor = _tensor(file, name)
    expected = (config.intermediate_size, _tensor(file, fc1).shape[0])
    if tensor.shape != expected:
        raise GGUFError(
            f"{file.path}: tensor {name} has the shape {list(tensor.shape)}; expected "
            f"{list(expected)}, as the rank of {fc1} is {expected[1]}"
        )
    return tensor


def _tensor(file: GGUFFile, name: str) -> Tensor:
    if name not in file.tensors:
        raise GGUFError(
            f"{file.path}: tensor {name} is missing, though other layers have a predictor; "
            "all layers must have one, or none"
        )
    return file.tensors[name]
