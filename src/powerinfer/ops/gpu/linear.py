"""Products with weight matrices on the device: kernels for few tokens, torch for many.

With many tokens x is rounded to the type of the weights, in which a GPU multiplies many times
faster than in f32; sums are f32. Packed weights are decoded to f16.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from powerinfer.errors import NumericsError, ShapeError
from powerinfer.ops.gpu.formats import PANEL_BYTES
from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.matvec import binarized, check_x, input_blocks, matvec
from powerinfer.ops.gpu.kernels.prompts import decode_rows, decoded, halved
from powerinfer.ops.gpu.matrix import DeviceMatrix, upload_matrix
from powerinfer.ops.operands import Linear
from powerinfer.values import ByteArray, IntArray

__all__ = ["DeviceLinear", "linear", "multiplied", "panels", "product", "rounded", "write_columns"]

# Decoded numbers in flight at a time, see `matrix`.
_PIECE = 1 << 22

DeviceLinear: TypeAlias = Linear[DeviceMatrix, torch.Tensor]

# f32 results of f16 and bf16 products: with CUDA; later with ROCm.
_HAS_WIDE_OUTPUT = "dtype" in torch.ops.aten.mm.overloads() and torch.version.hip is None

# Magnitude to which the largest number of a row is scaled. Far above 1, f16 keeps all its bits for
# numbers down to 2^-24 of it; if results are f16 too, they must not overflow.
_LARGEST = 1024.0 if _HAS_WIDE_OUTPUT else 1.0


def linear(x: Tensor, layers: Sequence[DeviceLinear]) -> list[Tensor]:
    """Multiply f32[num_tokens, columns] with several matrices: f32[num_tokens, rows] each."""
    x = x.contiguous()
    if len(x) > MAX_TOKENS:
        products = [(product(x, layer.matrix), layer.bias) for layer in layers]
        return [y if bias is None else y.add_(bias) for y, bias in products]
    # Rounded to int8 blocks once for all packed matrices.
    packed = [layer.matrix for layer in layers if layer.matrix.bits and not layer.matrix.is_binary]
    blocks = None
    if packed:
        check_x(x, packed[0])
        blocks = input_blocks(x, packed[0])
    return [
        matvec(x, layer.matrix, layer.bias, blocks=None if layer.matrix.is_binary else blocks)
        for layer in layers
    ]


def product(x: Tensor, matrix: DeviceMatrix) -> Tensor:
    """Compute x @ matrix.T for any number of tokens, see `rounded`: f32[num_tokens, rows].

    Args:
        x: f32[num_tokens, columns], contiguous; missing columns count as zeros.

    Raises:
        ShapeError: x has more columns than the matrix.
    """
    columns = x.shape[1]
    if columns > matrix.columns:
        raise ShapeError(f"input of {columns} columns for a matrix of {matrix.columns} columns")
    factor, sizes = rounded(binarized(x) if matrix.is_binary else x, matrix)
    parts = ((rows, multiplied(factor, weights[:, :columns].T)) for rows, weights in panels(matrix))
    rows, out = next(parts)
    if rows.stop < matrix.rows:
        part, out = out, out.new_empty((len(x), matrix.rows))
        out[:, rows] = part
        for rows, part in parts:
            out[:, rows] = part
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
    size, memory = matrix.rows, matrix.values
    if matrix.bits:
        size = min(size, max(1, PANEL_BYTES // (2 * matrix.columns)))
        memory = memory.new_empty((size, matrix.columns), dtype=torch.float16)
    elif memory.dtype == torch.bfloat16 and not _HAS_WIDE_OUTPUT:
        # `multiplied` makes a copy in f32.
        size = max(1, PANEL_BYTES // (4 * matrix.columns))
    for first in range(0, matrix.rows, size):
        rows = slice(first, min(first + size, matrix.rows))
        if matrix.bits:
            panel = memory[: rows.stop - first]
            decode_rows(matrix, first, panel)
            yield rows, panel
        else:
            yield rows, memory[rows]


def multiplied(x: Tensor, y: Tensor) -> Tensor:
    """Multiply what `rounded` returned with weights, or slices of both; sums are f32."""
    if x.dtype == torch.float32:
        return torch.mm(x, y.float())
    if not x.is_cuda:
        return torch.mm(x.float(), y.float())
    if _HAS_WIDE_OUTPUT:
        return torch.mm(x, y, out_dtype=torch.float32)
    return torch.mm(x, y).float()


def write_columns(
    target: DeviceMatrix,
    ids: IntArray,
    encoded: ByteArray,
    format_name: str,
    columns: int,
    first: int,
) -> None:
    """Write columns of a piece of a matrix into rows of another: a neuron has a row of `down`.

    Args:
        target: floats [slots, hidden_size]; row s gets column ids[s], from element `first` on.
        ids: i32[at most slots], columns of the matrix.
        encoded: u8[rows, row_bytes], some rows of the matrix, of `columns` numbers each.
        first: number of the first of these rows.

    Raises:
        NumericsError: a number does not fit the f16 of `target`.
    """
    chosen = torch.from_numpy(ids.astype("int64")).to(target.device)
    step = max(1, _PIECE // columns)
    for start in range(0, len(encoded), step):
        piece = upload_matrix(encoded[start : start + step], format_name, columns, target.device)
        numbers = decoded(piece).index_select(1, chosen)
        written = numbers.to(target.values.dtype)
        is_narrowed = numbers.dtype == torch.float32 and written.dtype == torch.float16
        if is_narrowed and (written.isinf() & numbers.isfinite()).any():
            raise NumericsError(
                f"a number of a {format_name} matrix is beyond the largest f16, which its columns "
                "would be kept in on the device; leave this model on the CPU"
            )
        at = first + start
        target.values[: len(chosen), at : at + piece.rows] = written.T
