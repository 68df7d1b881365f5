"""Decoding of packed rows to f16, a panel at a time, for products with many tokens.

Bound by memory: the packed bytes, read once, and two bytes a number, written once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.kernels import IS_INTERPRETED
from powerinfer.ops.gpu.kernels.matvec import NUM_WARPS, power_of_two, row_arguments
from powerinfer.ops.gpu.kernels.rows import load_rows
from powerinfer.ops.gpu.matrix import DeviceMatrix

__all__ = ["decode_rows", "decoded"]

_ROWS = 64 if IS_INTERPRETED else 4
_MOST_COLUMNS = 1024


# One compiled kernel for panels of any size.
@triton.jit(do_not_specialize=["first", "num_rows"])
def decode_kernel(
    values,
    scales,
    panel,
    first,
    num_rows,
    columns,
    stride,
    scale_stride,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program for ROWS rows and BLOCK columns."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    block = tl.program_id(1)
    is_row = rows < num_rows
    tile = load_rows(
        values, scales, rows + first, is_row, block, stride, scale_stride, BITS, CENTRE, BLOCK
    )
    places = block * BLOCK + tl.arange(0, BLOCK)
    inside = is_row[:, None] & (places < columns)[None, :]
    tl.store(panel + rows[:, None] * columns + places[None, :], tile.to(tl.float16), mask=inside)


def decode_rows(matrix: DeviceMatrix, first: int, panel: Tensor) -> None:
    """Decode rows of a packed matrix, from `first` on, to f16[num_rows, matrix.columns]."""
    num_rows, columns = panel.shape
    block = power_of_two(columns, _MOST_COLUMNS)
    decode_kernel[(triton.cdiv(num_rows, _ROWS), triton.cdiv(columns, block))](
        matrix.values,
        matrix.values if matrix.scales is None else matrix.scales,
        panel,
        first,
        num_rows,
        columns,
        **row_arguments(matrix),
        ROWS=_ROWS,
        BLOCK=block,
        num_warps=NUM_WARPS,
    )


def decoded(matrix: DeviceMatrix) -> Tensor:
    """Decode a whole matrix: new f16 of packed formats; of floats a view in their type."""
    if not matrix.bits:
        return matrix.values
    panel = torch.empty((matrix.rows, matrix.columns), dtype=torch.float16, device=matrix.device)
    decode_rows(matrix, 0, panel)
    return panel
