"""mask[t, i] = weights[i, :] . x[t, :] + bias[i] >= threshold: one stage of a predictor.

Neurons that an earlier stage stopped for every token are not read. Bound by memory: the bytes of
the rows that are. A score that is NaN lets its neuron pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.kernels.matvec import (
    check_x,
    input_blocks,
    row_arguments,
    tile_sizes,
)
from powerinfer.ops.gpu.kernels.overlap import begin_filling, overlapping
from powerinfer.ops.gpu.kernels.rows import dot_rows
from powerinfer.ops.gpu.matrix import DeviceMatrix

__all__ = ["score_mask"]


@overlapping
def mask_kernel(
    x,
    x_blocks,
    center,
    values,
    scales,
    bias,
    threshold,
    earlier,
    mask,
    num_tokens,
    num_rows,
    x_columns,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_CENTER: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_EARLIER: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    """One program for ROWS neurons; `earlier` and `mask` may be the same memory."""
    begin_filling()
    numbers = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = numbers.to(tl.int64)
    is_read = numbers < num_rows
    tokens = tl.arange(0, TOKENS)
    inside = (tokens < num_tokens)[:, None] & is_read[None, :]
    at = tokens[:, None] * num_rows + rows[None, :]
    passed = inside
    if HAS_EARLIER:
        passed = tl.load(earlier + at, mask=inside, other=0) != 0
        is_read = tl.max(passed.to(tl.int32), axis=0) != 0
    if tl.max(is_read.to(tl.int32), axis=0) != 0:
        scores = dot_rows(
            x, x_blocks, center, values, scales, rows, is_read, num_tokens, x_columns,
            BITS, CENTRE, SCALING, SIZE, HAS_CENTER, TOKENS, ROWS, BLOCK, BLOCKS, WIDTH, UNROLLED,
        )  # fmt: skip
        if HAS_BIAS:
            scores += tl.load(bias + rows, mask=is_read, other=0.0)[None, :]
        passed = passed & ~(scores < threshold)
    tl.store(mask + at, passed.to(tl.uint8), mask=inside)


def score_mask(
    x: Tensor,
    matrix: DeviceMatrix,
    bias: Tensor | None,
    threshold: float,
    *,
    center: Tensor | None = None,
    earlier: Tensor | None = None,
) -> Tensor:
    """Which neurons reach a score: u8[num_tokens, rows] of 0 and 1.

    Args:
        x: f32[num_tokens, at most matrix.columns], up to 8 tokens; further columns meet zeros.
        matrix: a row per neuron; `sign` sees the signs of x only.
        bias: f32[rows], added to the scores, or None.
        threshold: neurons whose score is below it do not pass.
        center: f32[columns of x], subtracted from x, or None.
        earlier: u8[num_tokens, rows] of an earlier stage, or None; taken over for the result.

    Raises:
        ShapeError: x does not fit the matrix.
    """
    check_x(x, matrix)
    num_tokens, rows = len(x), matrix.rows
    blocks = input_blocks(x, matrix, center)
    mask = earlier
    if mask is None:
        mask = torch.empty((num_tokens, rows), dtype=torch.uint8, device=x.device)
    sizes = tile_sizes(num_tokens, rows, x.shape[1], matrix.bits)
    mask_kernel[(triton.cdiv(rows, sizes["ROWS"]),)](
        x,
        x if blocks is None else blocks,
        x if center is None else center,
        matrix.values,
        matrix.scales,
        x if bias is None else bias,
        float(threshold),
        mask,
        mask,
        num_tokens,
        rows,
        x.shape[1],
        HAS_CENTER=center is not None and blocks is None,
        HAS_BIAS=bias is not None,
        HAS_EARLIER=earlier is not None,
        WIDTH=0 if blocks is None else blocks.shape[2],
        **row_arguments(matrix),
        **sizes,
    )
    return mask
