"""Predictor matrices of files: `fc1` and `fc2` of every layer whose neurons are predicted.

With experts `fc2_exps` holds one matrix per expert, and so does `fc1_exps`; or all share one `fc1`.
Ranks differ between layers and follow from the shapes. In `opt` files these names are the
predictor's, not OPT's own fc1 and fc2.
"""

import math
from collections.abc import Mapping

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, keys
from powerinfer.models.architecture import Architecture
from powerinfer.models.config import ModelConfig
from powerinfer.predictors import PredictorInput

__all__ = ["MLPTensors", "find_predictors", "input_width", "predictor_threshold"]

MLPTensors = tuple[Tensor, Tensor]
"""fc1 [rank, input width] and fc2 [intermediate_size, rank] of one layer.

With experts fc2 is [num_experts, intermediate_size, rank], and fc1 as above, one for all experts,
or [num_experts, rank, input width].
"""


def find_predictors(
    file: GGUFFile, config: ModelConfig, architecture: Architecture
) -> Mapping[int, MLPTensors]:
    """Return the predictors by number of their layer; empty if the file has none.

    Layers without an FFN of neurons that are counted have none, see `ModelConfig.counted_layers`.

    Raises:
        GGUFError: only some of the others have one, or a shape is wrong; the message names the
            tensor.
    """
    numbers = config.counted_layers
    names = {number: _names(file, config, number) for number in numbers}
    if not any(name in file.tensors for pair in names.values() for name in pair):
        return {}
    width = input_width(config, architecture)
    return {
        number: (_fc1(file, config, fc1, width), _fc2(file, config, fc1, fc2))
        for number, (fc1, fc2) in names.items()
    }


def input_width(config: ModelConfig, architecture: Architecture) -> int:
    """Columns of fc1: the numbers that predictors see of a token."""
    sees_ffn_input = architecture.predictor_input is PredictorInput.FFN_INPUT
    return config.expert_hidden_size if sees_ffn_input else config.hidden_size


def _names(file: GGUFFile, config: ModelConfig, number: int) -> tuple[str, str]:
    """Names of a layer's fc1 and fc2; experts may share one fc1."""
    fc1, fc2 = f"blk.{number}.fc1", f"blk.{number}.fc2"
    if not _experts(config):
        return f"{fc1}.weight", f"{fc2}.weight"
    own, shared = f"{fc1}_exps.weight", f"{fc1}.weight"
    is_shared = shared in file.tensors and own not in file.tensors
    return shared if is_shared else own, f"{fc2}_exps.weight"


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


def _fc1(file: GGUFFile, config: ModelConfig, name: str, width: int) -> Tensor:
    tensor = _tensor(file, name)
    wanted = _experts(config) if name.endswith("_exps.weight") else ()
    *experts, rank, columns = tensor.shape if len(tensor.shape) > 1 else (0, 0)
    if (*experts, columns) != (*wanted, width) or rank < 1:
        expected = [*map(str, wanted), "rank", str(width)]
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
