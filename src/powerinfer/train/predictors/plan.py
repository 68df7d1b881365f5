"""The plan of a training, and the models that it fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import GGUFFile
from powerinfer.models import ModelConfig
from powerinfer.train.predictors.goal import RANK_STEP, Goal
from powerinfer.train.predictors.ranks import rank_parameters

__all__ = ["TrainingPlan", "check_model", "count_parameters", "parameter_limit"]


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
    """Raise UnsupportedError for a model with experts or without neurons that are ever zero."""
    if config.experts is not None:
        raise UnsupportedError(
            f"this model has {config.num_experts} experts in each layer; predictors are trained "
            "for models without experts only"
        )
    if not config.activation.is_sparse:
        raise UnsupportedError(
            "there is nothing to predict: neurons are skipped under activations of the ReLU "
            f"family, and this model runs {config.activation}",
            remedy="if that is wrong, name the right one with {activation}",
        )


def count_parameters(file: GGUFFile) -> int:
    """Parameters of a model, without the predictors that its file has."""
    return sum(
        tensor.num_elements
        for tensor in file.tensors.values()
        if not tensor.name.endswith((".fc1.weight", ".fc2.weight"))
    )


def parameter_limit(goal: Goal, config: ModelConfig, num_parameters: int) -> int:
    """Most parameters of the predictors of all layers together."""
    limit = int(goal.max_share * num_parameters)
    cost = rank_parameters(config.hidden_size, config.intermediate_size)
    least = config.num_layers * cost * RANK_STEP
    if limit < least:
        needed = -(-100_000 * least // num_parameters) / 100_000
        raise UnsupportedError(
            f"predictors of the smallest rank, {RANK_STEP}, take a share of {needed:g} of this "
            f"model's parameters, and {goal.max_share:g} is allowed",
            remedy="allow more with {max_share}",
        )
    return limit
