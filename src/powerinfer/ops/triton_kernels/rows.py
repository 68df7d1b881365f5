"""What every kernel over weight rows shares: loading rows as f32, and their products with x.

A row is `stride` elements of `values` (floats, or 32-bit words of packed codes) and, when packed,
`scale_stride` f16 of `scales`. See `powerinfer.ops.device_formats`.
"""

import triton
import triton.language as tl

__all__ = ["dot_rows", "load_rows", "load_x"]


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
def load_x(
    x,
    center,
    block,
    num_tokens,
    x_columns,
    HAS_CENTER: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """f32[TOKENS, BLOCK]: columns of the input less its center; zeros outside."""
    columns = block * BLOCK + tl.arange(0, BLOCK)
    tokens = tl.arange(0, TOKENS)
    inside = (tokens < num_tokens)[:, None] & (columns < x_columns)[None, :]
    seen = tl.load(x + tokens[:, None] * x_columns + columns[None, :], mask=inside, other=0.0)
    if HAS_CENTER:
        middle = tl.load(center + columns, mask=columns < x_columns, other=0.0)
        seen = seen - middle[None, :]
    return seen


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

    Sums stay apart per column of a block until the end, so that threads meet once.
    """
    if TOKENS == 1:
        lanes = tl.zeros([ROWS, BLOCK], tl.float32)
    else:
        lanes = tl.zeros([TOKENS, ROWS, BLOCK], tl.float32)
    for block in range(tl.cdiv(x_columns, BLOCK)):
        weights = load_rows(
            values, scales, rows, is_used, block, stride, scale_stride, BITS, CENTRE, BLOCK
        )
        seen = load_x(x, center, block, num_tokens, x_columns, HAS_CENTER, TOKENS, BLOCK)
        if TOKENS == 1:
            lanes += weights * seen
        else:
            lanes += weights[None, :, :] * seen[:, None, :]
    # Both ways end in one return: the compiler would go on behind a return inside a branch.
    if TOKENS == 1:
        sums = tl.sum(lanes, axis=1)[None, :]
    else:
        sums = tl.sum(lanes, axis=2)
    return sums
