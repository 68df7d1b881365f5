"""y[t, i] = weights[i, :] . x[t, :] for up to 8 tokens: the product of decoding.

weights: rows of floats or packed codes. x, y: f32. Bound by memory: the bytes of the matrix, read
once. Sums are f32 in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.errors import ShapeError
from powerinfer.ops.gpu.kernels import IS_INTERPRETED, MAX_TOKENS
from powerinfer.ops.gpu.kernels.rows import dot_rows
from powerinfer.ops.gpu.matrix import DeviceMatrix

__all__ = [
    "NUM_WARPS",
    "binarized",
    "check_x",
    "matvec",
    "power_of_two",
    "row_arguments",
    "tile_sizes",
]

NUM_WARPS = 4
"""Warps of a program of the matrix-vector kernels."""

_MOST_COLUMNS = 1024
# 132 processors of an H200 with four programs each; fewer rows a program until there are so many.
_WANTED_PROGRAMS = 1 if IS_INTERPRETED else 512
_MOST_ROWS = 64 if IS_INTERPRETED else 4


@triton.jit
def matvec_kernel(
    x,
    center,
    values,
    scales,
    bias,
    y,
    num_tokens,
    num_rows,
    x_columns,
    stride,
    scale_stride,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    HAS_CENTER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_RELU: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for ROWS rows."""
    numbers = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = numbers.to(tl.int64)
    is_row = numbers < num_rows
    sums = dot_rows(
        x,
        center,
        values,
        scales,
        rows,
        is_row,
        num_tokens,
        x_columns,
        stride,
        scale_stride,
        BITS,
        CENTRE,
        HAS_CENTER,
        TOKENS,
        ROWS,
        BLOCK,
    )
    if HAS_BIAS:
        sums += tl.load(bias + rows, mask=is_row, other=0.0)[None, :]
    if IS_RELU:
        # Written so that NaN passes.
        sums = tl.where(sums <= 0.0, 0.0, sums)
    tokens = tl.arange(0, TOKENS)
    inside = (tokens < num_tokens)[:, None] & is_row[None, :]
    tl.store(y + tokens[:, None] * num_rows + rows[None, :], sums, mask=inside)


@triton.jit
def binarize_kernel(x, center, y, columns, HAS_CENTER: tl.constexpr, BLOCK: tl.constexpr):
    """Binarises one token: sign(x) * mean |x|; zeros at the end of x are padding and stay."""
    token = tl.program_id(0)
    sums = tl.zeros([BLOCK], tl.float32)
    lengths = tl.zeros([BLOCK], tl.int32)
    for block in range(tl.cdiv(columns, BLOCK)):
        places = block * BLOCK + tl.arange(0, BLOCK)
        centered = _less_center(x, center, token, places, columns, HAS_CENTER)
        sums += tl.abs(centered)
        lengths = tl.where(centered != 0.0, places + 1, lengths)
    length = tl.max(lengths, axis=0)
    mean = tl.sum(sums, axis=0) / tl.maximum(length, 1).to(tl.float32)
    for block in range(tl.cdiv(columns, BLOCK)):
        places = block * BLOCK + tl.arange(0, BLOCK)
        centered = _less_center(x, center, token, places, columns, HAS_CENTER)
        signed = tl.where(centered < 0.0, -mean, mean)
        kept = tl.where(places < length, signed, 0.0)
        tl.store(y + token * columns + places, kept, mask=places < columns)


@triton.jit
def _less_center(x, center, token, places, columns, HAS_CENTER: tl.constexpr):
    centered = tl.load(x + token * columns + places, mask=places < columns, other=0.0)
    if HAS_CENTER:
        centered = centered - tl.load(center + places, mask=places < columns, other=0.0)
    return centered


def matvec(
    x: Tensor,
    matrix: DeviceMatrix,
    bias: Tensor | None = None,
    *,
    is_relu: bool = False,
    center: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """X @ matrix.T + bias: f32[num_tokens, rows].

    A matrix of format `sign` multiplies the signs of x, times the mean magnitude of its row.

    Args:
        x: f32[num_tokens, at most matrix.columns], up to 8 tokens; further columns meet zeros.
        matrix: on the device of x.
        bias: f32[rows] or None.
        is_relu: clip what is negative.
        center: f32[columns of x], subtracted from every token, or None.
        out: f32[num_tokens, rows] to write to, or None for a new one.

    Raises:
        ShapeError: sizes do not fit each other.
    """
    check_x(x, matrix)
    num_tokens, rows = len(x), matrix.rows
    if matrix.is_binary:
        x, center = binarized(x, center), None
    y = (
        torch.empty((num_tokens, rows), dtype=torch.float32, device=x.device)
        if out is None
        else out
    )
    sizes = tile_sizes(num_tokens, rows, x.shape[1], matrix.bits)
    matvec_kernel[(triton.cdiv(rows, sizes["ROWS"]),)](
        x,
        x if center is None else center,
        matrix.values,
        matrix.values if matrix.scales is None else matrix.scales,
        x if bias is None else bias,
        y,
        num_tokens,
        rows,
        x.shape[1],
        HAS_CENTER=center is not None,
        HAS_BIAS=bias is not None,
        IS_RELU=is_relu,
        **row_arguments(matrix),
        **sizes,
        num_warps=NUM_WARPS,
    )
    return y


def binarized(x: Tensor, center: Tensor | None = None) -> Tensor:
    """Inputs of a `sign` matrix: x f32[num_tokens, columns] less `center` f32[columns]."""
    y = torch.empty_like(x)
    binarize_kernel[(len(x),)](
        x,
        x if center is None else center,
        y,
        x.shape[1],
        HAS_CENTER=center is not None,
        BLOCK=power_of_two(x.shape[1], 1024),
        num_warps=NUM_WARPS,
    )
    return y


def row_arguments(matrix: DeviceMatrix) -> dict[str, int | float]:
    """Kernel arguments, by name, that locate the rows of a matrix."""
    return {
        "stride": matrix.values.shape[1],
        "scale_stride": 0 if matrix.scales is None else matrix.scales.shape[1],
        "BITS": matrix.bits,
        "CENTRE": matrix.centre,
    }


def check_x(x: Tensor, matrix: DeviceMatrix) -> None:
    """Check that an input fits a matrix-vector kernel.

    Raises:
        ShapeError: it has no or too many tokens, more columns than the matrix, or is not
            contiguous f32.
    """
    is_plain = x.dtype == torch.float32 and x.is_contiguous()
    if x.ndim != 2 or not 1 <= len(x) <= MAX_TOKENS or x.shape[1] > matrix.columns or not is_plain:
        raise ShapeError(
            f"input {x.dtype} of shape {tuple(x.shape)} for a matrix of {matrix.columns} columns; "
            f"expected contiguous f32 of 1 to {MAX_TOKENS} tokens and no more columns"
        )


def tile_sizes(num_tokens: int, rows: int, columns: int, bits: int) -> dict[str, int]:
    """Tokens, rows and columns of the tile of a program, powers of two.

    As many rows as leave work for all processors and registers for the sums, which are one per
    token, row and column of the block: at most 64 in each thread. Blocks stay so wide that a
    thread reads four columns of a row at once, weights and input alike.
    """
    tokens = power_of_two(num_tokens, MAX_TOKENS)
    widest = _MOST_COLUMNS if tokens <= 2 else _MOST_COLUMNS // 2
    most = _MOST_ROWS
    if bits and tokens == 1:
        most *= 2
    elif tokens == MAX_TOKENS:
        most //= 2
    while most > 1 and rows < most * _WANTED_PROGRAMS:
        most //= 2
    return {"TOKENS": tokens, "ROWS": most, "BLOCK": power_of_two(columns, widest)}


def power_of_two(size: int, largest: int) -> int:
    """The power of two that holds `size`, at most `largest`; widths of blocks start at 32."""
    smallest = 1 if largest <= MAX_TOKENS else 32
    return int(min(largest, max(smallest, triton.next_power_of_2(size))))
