"""Matrices of all experts of a layer for the native CPU backend."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from powerinfer.gguf import Tensor
from powerinfer.ops.expert_tensors import check_expert_tensors

__all__ = ["merged_experts"]


def merged_experts(tensors: Sequence[Tensor]) -> Tensor:
    """The matrices of all experts as one tensor [num_experts * rows, columns].

    Args:
        tensors: see `powerinfer.ops.weight_loading.LoadsWeights.expert_matrix`.

    Raises:
        ShapeError: they are not alike.
    """
    check_expert_tensors(tensors)
    first = tensors[0]
    data = first.data if len(tensors) == 1 else np.concatenate([each.data for each in tensors])
    num_rows = sum(int(np.prod(each.shape[:-1])) for each in tensors)
    return replace(first, shape=(num_rows, first.shape[-1]), data=data)
