"""Shared parts of kernels over weight rows: loading rows as f32, and their products with x.

A row is `stride` elements of `values` (floats, or 32-bit words of packed codes) and, when packed,
`scale_stride` f16 of `scales`. See `powerinfer.ops.gpu.formats`.
"""

import triton
import triton.language as tl

__all__ = ["dot_rows", "load_rows"]


@triton.jit
def load_rows(
    values,
    scales,
    rows,
    is_used,
    block,
    stride,
    scale_stride,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """f32[R, BLOCK]: columns block * BLOCK and on of `rows` i64[R]; zeros where not `is_used`."""
    if BITS == 0:
        columns = block * BLOCK + tl.max_contiguous(tl.arange(0, BLOCK), 4)
        inside = is_used[:, None] & (columns < stride)[None, :]
        found = tl.load(values + rows[:, None] * stride + columns[None, :], mask=inside, other=0.0)
        tile = found.to(tl.float32)
    else:
        PER_WORD: tl.constexpr = 32 // BITS
        WORDS: tl.constexpr = BLOCK // PER_WORD
        words = block * WORDS + tl.arange(0, WORDS)
        inside = is_used[:, None] & (words < stride)[None, :]
        packed = tl.load(values + rows[:, None] * stride + words[None, :], mask=inside, other=0)
        at_scale = rows[:, None] * scale_stride + (words // BITS)[None, :]
        scale = tl.load(scales + at_scale, mask=inside, other=0.0).to(tl.float32)
        shifts = tl.arange(0, PER_WORD) * BITS
        codes = (packed[:, :, None] >> shifts[None, None, :]) & ((1 << BITS) - 1)
        numbers = (codes.to(tl.float32) - CENTRE) * scale[:, :, None]
        tile = tl.reshape(numbers, [packed.shape[0], BLOCK])
    return tile


@triton.jit
def _seen(
    x,
    center,
    token: tl.constexpr,
    block,
    num_tokens,
    x_columns,
    HAS_CENTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """f32[1, BLOCK]: columns of one token less its center; zeros outside."""
    columns = (block * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = columns < x_columns
    if token > 0:
        # There always is a first one.
        inside = inside & (tl.full([1, BLOCK], token, tl.int32) < num_tokens)
    centered = tl.load(x + token * x_columns + columns, mask=inside, other=0.0)
    if HAS_CENTER:
        centered = centered - tl.load(center + columns, mask=columns < x_columns, other=0.0)
    return centered


@triton.jit
def dot_rows(
    x,
    center,
    values,
    scales,
    rows,
    is_used,
    num_tokens,
    x_columns,
    stride,
    scale_stride,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    HAS_CENTER: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """f32[TOKENS, ROWS]: products of rows with every token of x f32[num_tokens, x_columns].

    Sums stay apart per column of a block until the end, so that threads meet once. They are a
    matrix per token and not one of three dimensions, whose layout in registers would be another
    than that of the weights: every block of them would pass through shared memory.
    """
    lanes0 = tl.zeros([ROWS, BLOCK], tl.float32)
    lanes1 = lanes0
    lanes2 = lanes0
    lanes3 = lanes0
    lanes4 = lanes0
    lanes5 = lanes0
    lanes6 = lanes0
    lanes7 = lanes0
    for block in range(tl.cdiv(x_columns, BLOCK)):
        tile = load_rows(
            values, scales, rows, is_used, block, stride, scale_stride, BITS, CENTRE, BLOCK
        )
        lanes0 += tile * _seen(x, center, 0, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
        if TOKENS > 1:
            lanes1 += tile * _seen(x, center, 1, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
        if TOKENS > 2:
            lanes2 += tile * _seen(x, center, 2, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
            lanes3 += tile * _seen(x, center, 3, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
        if TOKENS > 4:
            lanes4 += tile * _seen(x, center, 4, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
            lanes5 += tile * _seen(x, center, 5, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
            lanes6 += tile * _seen(x, center, 6, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
            lanes7 += tile * _seen(x, center, 7, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
    sums = tl.sum(lanes0, axis=1)[None, :]
    tokens = tl.arange(0, TOKENS)[:, None]
    if TOKENS > 1:
        sums = tl.where(tokens == 1, tl.sum(lanes1, axis=1)[None, :], sums)
    if TOKENS > 2:
        sums = tl.where(tokens == 2, tl.sum(lanes2, axis=1)[None, :], sums)
        sums = tl.where(tokens == 3, tl.sum(lanes3, axis=1)[None, :], sums)
    if TOKENS > 4:
        sums = tl.where(tokens == 4, tl.sum(lanes4, axis=1)[None, :], sums)
        sums = tl.where(tokens == 5, tl.sum(lanes5, axis=1)[None, :], sums)
        sums = tl.where(tokens == 6, tl.sum(lanes6, axis=1)[None, :], sums)
        sums = tl.where(tokens == 7, tl.sum(lanes7, axis=1)[None, :], sums)
    return sums
