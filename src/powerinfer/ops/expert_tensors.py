"""Tensors that hold the weights of several experts: checks that all backends share."""

import math
from collections.abc import Sequence
from dataclasses import replace

from powerinfer.errors import ShapeError
from powerinfer.gguf import Tensor

__all__ = ["as_rows", "check_expert_biases", "check_expert_tensors"]


def as_rows(tensor: Tensor) -> Tensor:
    """Concatenate the rows of all matrices of a tensor: [rows, columns]."""
    return replace(tensor, shape=(math.prod(tensor.shape[:-1]), tensor.shape[-1]))


def check_expert_tensors(tensors: Sequence[Tensor]) -> None:
    """Check tensors for `WeightLoader.expert_matrix`.

    Raises:
        ShapeError: they are neither one tensor of three dimensions nor matrices that are alike.
    """
    first = tensors[0]
    if len(tensors) == 1 and len(first.shape) == 3:
        return
    for tensor in tensors:
        if len(tensor.shape) != 2:
            raise ShapeError(
                f"{tensor.name} must be a matrix of one expert, or of all in three dimensions; its "
                f"shape is {list(tensor.shape)}"
            )
        if (tensor.shape, tensor.format) != (first.shape, first.format):
            raise ShapeError(
                f"{tensor.name} is {list(tensor.shape)} in {tensor.format}, {first.name} "
                f"{list(first.shape)} in {first.format}: the matrices of all experts must be alike"
            )


def check_expert_biases(tensor: Tensor) -> None:
    """Check a tensor for `WeightLoader.expert_vector`.

    Raises:
        ShapeError: it is not two-dimensional.
    """
    if len(tensor.shape) != 2:
        raise ShapeError(
            f"{tensor.name} must hold a vector per expert, its shape is {list(tensor.shape)}"
        )
