"""Predictor matrices of files: `fc1` and `fc2` of every layer.

With experts these are our `fc1_exps` and `fc2_exps`, which hold one matrix per expert. Ranks differ
between layers and follow from the shapes. In `opt` files these names are the predictor's, not OPT's
own fc1 and fc2.
"""

import math

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, keys
from powerinfer.models.config import ModelConfig

__all__ = ["MLPTensors", "find_predictors", "predictor_threshold"]

MLPTensors = tuple[Tensor, Tensor]
"""fc1 [rank, hidden_size] and fc2 [intermediate_size, rank] of one layer.

With experts [num_experts, rank, hidden_size] and [num_experts, intermediate_size, rank].
"""


def find_predictors(file: GGUFFile, config: ModelConfig) -> tuple[MLPTensors, ...]:
    """Return the predictors of all layers in order; empty if the file has none.

    Raises:
        GGUFError: only some layers have one, or a shape is wrong; the message names the tensor.
    """
    end = "_exps.weight" if _experts(config) else ".weight"
    names = [(f"blk.{n}.fc1{end}", f"blk.{n}.fc2{end}") for n in range(config.num_layers)]
    if not any(name in file.tensors for pair in names for name in pair):
        return ()
    return tuple((_fc1(file, config, fc1), _fc2(file, config, fc1, fc2)) for fc1, fc2 in names)


def predictor_threshold(file: GGUFFile) -> float:
    """Score from which the file's predictors call a neuron active; 0 if the file has no key.

    Raises:
        GGUFError: the key is not a number.
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
    *experts, rank, hidden_size = tensor.shape if len(tensor.shape) > 1 else (0, 0)
    if (*experts, hidden_size) != (*_experts(config), config.hidden_size) or rank < 1:
        expected = [*map(str, _experts(config)), "rank", str(config.hidden_size)]
        raise GGUFError(
            f"{file.path}: tensor {name} has the shape {list(tensor.shape)}; expected "
            f"[{', '.join(expected)}]"
        )
    return tensor


def _fc2(file: GGUFFile, config: ModelConfig, fc1: str, name: str) -> Tensor:
    tensor = _tensor(file, name)
    rank = _tensor(file, fc1).shape[-2]
    expected = (*_experts(config), config.intermediate_size, rank)
    if tensor.shape != expected:
        raise GGUFError(
            f"{file.path}: tensor {name} has the shape {list(tensor.shape)}; expected "
            f"{list(expected)}, as the rank of {fc1} is {rank}"
        )
    return tensor


def _experts(config: ModelConfig) -> tuple[int, ...]:
    """Leading dimension of tensors with a matrix per expert; empty without experts."""
    return (config.num_experts,) if config.num_experts else ()


def _tensor(file: GGUFFile, name: str) -> Tensor:
    if name not in file.tensors:
        raise GGUFError(
            f"{file.path}: tensor {name} is missing, but other layers have a predictor; "
            "all layers must have one, or none"
        )
    return file.tensors[name]
