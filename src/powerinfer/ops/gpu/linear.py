"""Products with weight matrices on the device: kernels for few tokens, torch for many."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from powerinfer.errors import ShapeError
from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.matvec import binarized, matvec
from powerinfer.ops.gpu.matrix import DeviceMatrix, decoded
from powerinfer.ops.operands import Linear

__all__ = ["DECODED_NUMBERS", "DeviceLinear", "half_product", "halved", "linear", "product"]

DeviceLinear: TypeAlias = Linear[DeviceMatrix, torch.Tensor]

DECODED_NUMBERS = 1 << 22
"""Numbers of a packed matrix decoded at a time. Decoding temporarily takes 12 bytes for each, which
a memory budget must leave room for; it takes longer than its launches."""

# f32 results of f16 products: since torch 2.8 with CUDA, later with ROCm.
_HAS_WIDE_OUTPUT = "dtype" in torch.ops.aten.mm.overloads() and torch.version.hip is None

# Magnitude to which the largest number of a row is scaled. Far above 1, f16 keeps all its bits for
# numbers down to 2^-24 of it; if results are f16 too, they must not overflow.
_LARGEST = 1024.0 if _HAS_WIDE_OUTPUT else 1.0


def linear(x: Tensor, layers: Sequence[DeviceLinear]) -> list[Tensor]:
    """Multiply f32[num_tokens, columns] with several matrices: f32[num_tokens, rows] each.

    Raises:
        ShapeError: the input does not fit a matrix.
    """
    x = x.contiguous()
    if x.shape[0] <= MAX_TOKENS:
        return [matvec(x, layer.matrix, layer.bias) for layer in layers]
    return [_biased(product(x, layer.matrix), layer.bias) for layer in layers]


def product(x: Tensor, matrix: DeviceMatrix) -> Tensor:
    """Compute x @ matrix.T for any number of tokens, decoding the weights piece by piece.

    x is rounded to f16 for f16 and packed weights.

    Args:
        x: f32[num_tokens, at most matrix.columns], contiguous.
        matrix: a matrix on the device of x.

    Returns:
        f32[num_tokens, rows].

    Raises:
        ShapeError: x has more columns than the matrix.
    """
    columns = x.shape[1]
    if columns > matrix.columns:
        raise ShapeError(f"input of {columns} columns for a matrix of {matrix.columns} columns")
    if matrix.is_binary:
        x = binarized(x)
    is_half = matrix.bits > 0 or matrix.values.dtype == torch.float16
    factor, sizes = halved(x) if is_half else (x, None)
    parts = []
    for first, last in _pieces(matrix):
        weights = decoded(matrix, first, last)[:, :columns]
        y = half_product(factor, weights.T) if is_half else torch.mm(factor, weights.float().T)
        parts.append(y)
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return out if sizes is None else out.mul_(sizes)


def half_product(x: Tensor, y: Tensor) -> Tensor:
    """Multiply f16 matrices with f32 sums; the result is f32."""
    if not x.is_cuda:
        return x.float() @ y.float()
    if _HAS_WIDE_OUTPUT:
        return torch.mm(x, y, out_dtype=torch.float32)
    return torch.mm(x, y).float()


def halved(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale rows to f16 of one largest magnitude; also return the factors of results, f32[n, 1]."""
    largest = x.abs().amax(dim=1, keepdim=True) / _LARGEST
    sizes = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (x / sizes).half(), sizes


def _pieces(matrix: DeviceMatrix) -> Iterator[tuple[int, int]]:
    """Split rows into pieces to decode; floats that need no decoding are one piece."""
    is_copied = matrix.bits > 0 or matrix.values.dtype == torch.bfloat16
    step = max(1, DECODED_NUMBERS // matrix.columns) if is_copied else matrix.rows
    for first in range(0, matrix.rows, step):
        yield first, min(first + step, matrix.rows)


def _biased(values: Tensor, bias: Tensor | None) -> Tensor:
    return values if bias is None else values.add_(bias)
