"""y[t, i] = weights[i, :] . x[t, :] for up to 8 tokens: the product of decoding.

weights: rows of floats, or packed codes, which multiply x rounded to int8 blocks. x, y: f32. Bound
by memory: the bytes of the matrix, read once. Sums are f32 in a fixed order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.errors import ShapeError
from powerinfer.ops.gpu.formats import device_format, num_blocks
from powerinfer.ops.gpu.kernels import IS_INTERPRETED, MAX_TOKENS
from powerinfer.ops.gpu.kernels.blocks import quantized, tile_blocks
from powerinfer.ops.gpu.kernels.overlap import begin_filling, begin_small, overlapping
from powerinfer.ops.gpu.kernels.rows import dot_rows
from powerinfer.ops.gpu.matrix import DeviceMatrix

__all__ = [
    "NUM_WARPS",
    "binarized",
    "check_x",
    "input_blocks",
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
# Blocks of floats that are on their way at a time; with four, fewer programs fit a processor. On an
# H100 products of F16 took 3 to 9 % less time with two than with one.
_UNROLLED = 2


@overlapping
def matvec_kernel(
    x,
    x_blocks,
    center,
    values,
    scales,
    bias,
    y,
    num_tokens,
    num_rows,
    x_columns,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_CENTER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_RELU: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    """One program for ROWS rows."""
    begin_filling()
    numbers = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = numbers.to(tl.int64)
    is_row = numbers < num_rows
    sums = dot_rows(
        x,
        x_blocks,
        center,
        values,
        scales,
        rows,
        is_row,
        num_tokens,
        x_columns,
        BITS,
        CENTRE,
        SCALING,
        SIZE,
        HAS_CENTER,
        TOKENS,
        ROWS,
        BLOCK,
        BLOCKS,
        WIDTH,
        UNROLLED,
    )
    if HAS_BIAS:
        sums += tl.load(bias + rows, mask=is_row, other=0.0)[None, :]
    if IS_RELU:
        # Written so that NaN passes.
        sums = tl.where(sums <= 0.0, 0.0, sums)
    tokens = tl.arange(0, TOKENS)
    inside = (tokens < num_tokens)[:, None] & is_row[None, :]
    tl.store(y + tokens[:, None] * num_rows + rows[None, :], sums, mask=inside)


@overlapping
def binarize_kernel(x, center, y, columns, HAS_CENTER: tl.constexpr, BLOCK: tl.constexpr):
    """Binarises one token: sign(x) * mean |x|; zeros at the end of x are padding and stay."""
    begin_small()
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
    blocks: Tensor | None = None,
) -> Tensor:
    """X @ matrix.T + bias: f32[num_tokens, rows].

    A matrix of format `sign` multiplies the signs of x, times the mean magnitude of its row.

    Args:
        x: f32[num_tokens, at most matrix.columns], up to 8 tokens; further columns meet zeros.
        matrix: on the device of x.
        bias: f32[rows] or None.
        center: f32[columns of x], subtracted from every token, or None.
        blocks: `input_blocks` of x, center and matrix; None: made here.

    Raises:
        ShapeError: sizes do not fit each other.
    """
    check_x(x, matrix)
    num_tokens, rows = len(x), matrix.rows
    if blocks is None:
        blocks = input_blocks(x, matrix, center)
    y = torch.empty((num_tokens, rows), dtype=torch.float32, device=x.device)
    sizes = tile_sizes(num_tokens, rows, x.shape[1], matrix.bits)
    matvec_kernel[(triton.cdiv(rows, sizes["ROWS"]),)](
        x,
        x if blocks is None else blocks,
        x if center is None else center,
        matrix.values,
        matrix.scales,
        x if bias is None else bias,
        y,
        num_tokens,
        rows,
        x.shape[1],
        HAS_CENTER=center is not None and blocks is None,
        HAS_BIAS=bias is not None,
        IS_RELU=is_relu,
        WIDTH=0 if blocks is None else blocks.shape[2],
        **row_arguments(matrix),
        **sizes,
    )
    return y


def input_blocks(x: Tensor, matrix: DeviceMatrix, center: Tensor | None = None) -> Tensor | None:
    """Round inputs to the int8 blocks that packed weights multiply; None for floats.

    Args:
        x: f32[num_tokens, columns], contiguous.
        matrix: the blocks fit all packed matrices, except that `sign` has blocks of its own.
        center: f32[columns], subtracted from every token, or None.
    """
    if matrix.is_binary:
        return quantized(binarized(x, center))
    return quantized(x, center) if matrix.bits else None


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


def row_arguments(matrix: DeviceMatrix) -> dict[str, int | float | str]:
    """Kernel arguments, by name, that locate the rows of a matrix."""
    form = device_format(matrix.format_name)
    return {
        "BITS": form.bits,
        "CENTRE": form.centre,
        "SCALING": form.scaling.value,
        "SIZE": num_blocks(matrix.columns) if form.bits else matrix.columns,
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


def tile_sizes(
    num_tokens: int,
    rows: int,
    columns: int,
    bits: int,
    most_rows: int | None = None,
    unrolled: int = _UNROLLED,
) -> dict[str, int]:
    """Sizes of the tile of a program, powers of two, and its warps.

    As many rows as leave work for all processors and registers for the sums, which are one per
    token, row and column or block: at most 64 in each thread. Tiles stay so wide that a thread
    reads four columns or blocks of a row at once, weights and input alike.

    Args:
        columns: of the input.
        bits: size of a code; 0 for floats.
        most_rows: limit of the rows of a tile.
        unrolled: most blocks of floats of one token on their way at a time.
    """
    tokens = power_of_two(num_tokens, MAX_TOKENS)
    most = _MOST_ROWS
    if bits and not IS_INTERPRETED:
        most = 1 if tokens == MAX_TOKENS else 2
    elif tokens == MAX_TOKENS:
        most //= 2
    while most > 1 and rows < most * _WANTED_PROGRAMS:
        most //= 2
    widest = _MOST_COLUMNS if tokens <= 2 else _MOST_COLUMNS // 2
    block = power_of_two(columns, widest)
    if bits or tokens > 1:
        unrolled = 1
    return {
        "TOKENS": tokens,
        "ROWS": min(most, most_rows or most),
        "BLOCK": block,
        "BLOCKS": tile_blocks(columns),
        "UNROLLED": min(unrolled, power_of_two(triton.cdiv(columns, block), MAX_TOKENS)),
        "num_warps": 1 if bits else NUM_WARPS,
    }


def power_of_two(size: int, largest: int) -> int:
    """The power of two that holds `size`, at most `largest`; widths of blocks start at 32."""
    smallest = 1 if largest <= MAX_TOKENS else 32
    return int(min(largest, max(smallest, triton.next_power_of_2(size))))
