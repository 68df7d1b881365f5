"""Products with weight matrices on the device: kernels for few tokens, torch for many.

With many tokens x is rounded to the type of the weights, in which a GPU multiplies many times
faster than in f32; sums are f32. Packed weights are decoded to f16.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from powerinfer.errors import ShapeError
from powerinfer.ops.gpu.formats import PANEL_BYTES
from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.matvec import binarized, check_x, input_blocks, matvec
from powerinfer.ops.gpu.kernels.prompts import decode_rows, halved
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.operands import Linear

__all__ = ["DeviceLinear", "linear", "multiplied", "panels", "product", "rounded"]

DeviceLinear: TypeAlias = Linear[DeviceMatrix, torch.Tensor]

# f32 results of f16 and bf16 products: with CUDA; later with ROCm.
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
        return _few_products(x, layers)
    return [_biased(product(x, layer.matrix), layer.bias) for layer in layers]


def _few_products(x: Tensor, layers: Sequence[DeviceLinear]) -> list[Tensor]:
    """Multiply up to 8 tokens, which are rounded to int8 blocks once for all packed matrices."""
    packed = [layer.matrix for layer in layers if layer.matrix.bits and not layer.matrix.is_binary]
    blocks = None
    if packed:
        check_x(x, packed[0])
        blocks = input_blocks(x, packed[0])

    def multiply(layer: DeviceLinear) -> Tensor:
        own = None if layer.matrix.is_binary else blocks
        return matvec(x, layer.matrix, layer.bias, blocks=own)

    return [multiply(layer) for layer in layers]


def product(x: Tensor, matrix: DeviceMatrix) -> Tensor:
    """Compute x @ matrix.T for any number of tokens, see `rounded`.

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
    factor, sizes = rounded(x, matrix)
    parts = [multiplied(factor, weights[:, :columns].T) for _, weights in panels(matrix)]
    out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return out if sizes is None else out.mul_(sizes)


def rounded(x: Tensor, matrix: DeviceMatrix) -> tuple[Tensor, Tensor | None]:
    """Round f32[num_tokens, columns] to the type in which a matrix multiplies.

    For f16, rows are scaled to one largest magnitude; results take the second value, f32[n, 1].
    bf16 needs no scaling: its exponents are those of f32.
    """
    if matrix.bits or matrix.values.dtype == torch.float16:
        return halved(x, _LARGEST)
    # A bf16 result would lose what the sums have.
    if matrix.values.dtype == torch.bfloat16 and _HAS_WIDE_OUTPUT:
        return x.bfloat16(), None
    return x, None


def panels(matrix: DeviceMatrix) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and their floats, [rows, columns], valid until the next slice.

    Floats are one panel, without a copy; packed rows are decoded to f16 in the same memory.
    """
    if not matrix.bits:
        # Unless `multiplied` would make a copy in f32.
        is_copied = matrix.values.dtype == torch.bfloat16 and not _HAS_WIDE_OUTPUT
        size = max(1, PANEL_BYTES // (4 * matrix.columns)) if is_copied else matrix.rows
        for rows in _slices(matrix.rows, size):
            yield rows, matrix.values[rows]
        return
    size = min(matrix.rows, max(1, PANEL_BYTES // (2 * matrix.columns)))
    memory = torch.empty((size, matrix.columns), dtype=torch.float16, device=matrix.device)
    for rows in _slices(matrix.rows, size):
        panel = memory[: rows.stop - rows.start]
        decode_rows(matrix, rows.start, panel)
        yield rows, panel


def multiplied(x: Tensor, y: Tensor) -> Tensor:
    """Multiply what `rounded` returned with weights, or slices of both; sums are f32."""
    if x.dtype == torch.float32:
        return torch.mm(x, y.float())
    if not x.is_cuda:
        return torch.mm(x.float(), y.float())
    if _HAS_WIDE_OUTPUT:
        return torch.mm(x, y, out_dtype=torch.float32)
    return torch.mm(x, y).float()


def _slices(num_rows: int, size: int) -> Iterator[slice]:
    return (slice(first, min(first + size, num_rows)) for first in range(0, num_rows, size))


def _biased(values: Tensor, bias: Tensor | None) -> Tensor:
    return values if bias is None else values.add_(bias)
