"""The plan of a training, and the models that it fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import GGUFFile
from powerinfer.models import ModelConfig
from powerinfer.models.sparsity import layers_to_count
from powerinfer.store.memory import available_memory_bytes, format_bytes
from powerinfer.train.predictors.goal import RANK_STEP, Goal
from powerinfer.train.predictors.sizes import PredictorSizes
from powerinfer.train.predictors.working_point import count_bytes

__all__ = [
    "TrainingPlan",
    "check_memory",
    "check_model",
    "count_parameters",
    "parameter_limit",
]

_PREDICTORS = (".fc1.weight", ".fc2.weight", ".fc1_exps.weight", ".fc2_exps.weight")
# Bytes of memory for each parameter of a network that is trained.
_WEIGHT_BYTES = 32


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """The text, goal and folders of a training.

    Attributes:
        num_tokens: most of their tokens to use.
        cache: folder for the collected data; removed at the end.
    """

    texts: Sequence[Path]
    num_tokens: int
    goal: Goal
    output: Path
    cache: Path
    cache_bytes: int
    device: str = "cpu"
    seed: int = 0


def check_model(config: ModelConfig) -> None:
    """Raise UnsupportedError for models without neurons that are ever zero, or can be counted."""
    if not config.has_ffns:
        raise UnsupportedError("there is nothing to predict: the model has no FFN")
    if not config.activation.is_sparse:
        raise UnsupportedError(
            "there is nothing to predict: neurons are skipped under activations of the ReLU "
            f"family, and this model runs {config.activation}",
            remedy="if that is wrong, name the right one with {activation}",
        )
    layers_to_count(config)


def count_parameters(file: GGUFFile) -> int:
    """Parameters of a model, without the predictors that its file has."""
    return sum(
        tensor.num_elements
        for tensor in file.tensors.values()
        if not tensor.name.endswith(_PREDICTORS)
    )


def parameter_limit(goal: Goal, sizes: PredictorSizes, num_layers: int, num_parameters: int) -> int:
    """Most parameters of the predictors of all layers together."""
    limit = int(goal.max_share * num_parameters)
    least = num_layers * sizes.rank_parameters * RANK_STEP
    if limit < least:
        needed = -(-100_000 * least // num_parameters) / 100_000
        raise UnsupportedError(
            f"predictors of the smallest rank, {RANK_STEP}, take a share of {needed:g} of this "
            f"model's parameters, and {goal.max_share:g} is allowed",
            remedy="allow more with {max_share}",
        )
    return limit


def check_memory(sizes: PredictorSizes, rank: int) -> None:
    """Raise UnsupportedError if training a layer on the CPU needs more memory than there is."""
    # Weights, their gradient and its average, and what the optimizer and saving copy.
    needed = count_bytes(sizes.num_neurons) + _WEIGHT_BYTES * rank * sizes.rank_parameters
    available = available_memory_bytes()
    if available is not None and needed > available:
        raise UnsupportedError(
            f"training a layer of {sizes.num_neurons} neurons at rank {rank} takes about "
            f"{format_bytes(needed)} of memory, and {format_bytes(available)} are available",
            remedy="free memory, allow smaller predictors with {max_share}, or train on a GPU with "
            "{device}",
        )
