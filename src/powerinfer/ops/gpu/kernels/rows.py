"""Shared parts of kernels over weight rows: their products with inputs, and rows as f32.

A row is floats, or words of packed codes and their scales in the layout of
`powerinfer.ops.gpu.formats`; SIZE is the number of its columns or blocks. Floats are
multiplied by f32 inputs. Packed codes are multiplied by int8 blocks (``blocks.py``), four at an
instruction; the integers of 32 columns are scaled and added up in f32.
"""

import torch
import triton
import triton.language as tl

from powerinfer.ops.gpu.kernels import IS_INTERPRETED

__all__ = ["dot_rows", "load_quad", "load_quads", "load_rows"]

# Not in the interpreter, which knows no machine instructions, nor on AMD's GPUs.
HAS_DP4A = tl.constexpr(not IS_INTERPRETED and torch.version.hip is None)


@triton.jit
def dot_rows(
    x,
    x_blocks,
    center,
    values,
    scales,
    rows,
    is_used,
    num_tokens,
    x_columns,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_CENTER: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """f32[TOKENS, ROWS]: products of `rows` i64[ROWS] with every token.

    Floats meet x f32[num_tokens, x_columns] less `center`, packed codes meet `x_blocks`. Rows that
    are not `is_used` are not read.

    Sums stay apart per column or block until the end, so that threads meet once. They are a matrix
    per token and not one of three dimensions, whose layout in registers would be another than that
    of the weights: every block of them would pass through shared memory.
    """
    lanes0 = tl.zeros([ROWS, BLOCK if BITS == 0 else BLOCKS], tl.float32)
    lanes1 = lanes0
    lanes2 = lanes0
    lanes3 = lanes0
    lanes4 = lanes0
    lanes5 = lanes0
    lanes6 = lanes0
    lanes7 = lanes0
    if BITS == 0:
        for block in range(tl.cdiv(x_columns, BLOCK)):
            tile = load_rows(values, rows, is_used, block, SIZE, BLOCK)
            lanes0 += tile * _seen(x, center, 0, block, num_tokens, x_columns, HAS_CENTER, BLOCK)
            if TOKENS > 1:
                lanes1 += tile * _seen(
                    x, center, 1, block, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
            if TOKENS > 2:
                lanes2 += tile * _seen(
                    x, center, 2, block, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
                lanes3 += tile * _seen(
                    x, center, 3, block, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
            if TOKENS > 4:
                lanes4 += tile * _seen(
                    x, center, 4, block, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
                lanes5 += tile * _seen(
                    x, center, 5, block, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
                lanes6 += tile * _seen(
                    x, center, 6, block, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
                lanes7 += tile * _seen(
                    x, center, 7, block, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
    else:
        # As many in a thread whatever their type, or tiles would have to change places.
        numbers = tl.max_contiguous(tl.arange(0, BLOCKS), (BLOCKS + 31) // 32)
        # Words of lower bits, of fields of FIELD_BITS; parts of them that have scales of their own.
        FIELD_BITS: tl.constexpr = 4 if BITS == 5 or BITS == 6 else BITS
        FIELDS: tl.constexpr = 8 // FIELD_BITS
        PARTS: tl.constexpr = 2 if SCALING == "sixteens" else 1
        PLANES: tl.constexpr = FIELD_BITS // PARTS
        for block in range(WIDTH // BLOCKS):
            places = (block * BLOCKS + numbers)[None, :]
            inside = is_used[:, None] & (places < SIZE)
            at_words = values + rows[:, None] * (SIZE * BITS) + places
            at_x = x_blocks + places
            for part in tl.static_range(PARTS):
                dots0 = tl.zeros([ROWS, BLOCKS], tl.int32)
                dots1 = dots0
                dots2 = dots0
                dots3 = dots0
                dots4 = dots0
                dots5 = dots0
                dots6 = dots0
                dots7 = dots0
                if BITS == 5:
                    upper = tl.load(at_words + 4 * SIZE, mask=inside, other=0)
                if BITS == 6:
                    upper = tl.load(at_words + (4 + part) * SIZE, mask=inside, other=0)
                for plane in tl.static_range(PLANES):
                    at = at_words + (part * PLANES + plane) * SIZE
                    words = tl.load(at, mask=inside, other=0)
                    for field in tl.static_range(FIELDS):
                        codes = words
                        if BITS < 8:
                            codes = (words >> (FIELD_BITS * field)) & (
                                0x01010101 * ((1 << FIELD_BITS) - 1)
                            )
                        if BITS == 5 or BITS == 6:
                            codes = codes | _upper_bits(upper, plane * 2 + field, BITS)
                        at = at_x + ((part * PLANES + plane) * FIELDS + field) * WIDTH
                        dots0 = _add_dots(dots0, codes, at, 0, WIDTH)
                        if TOKENS > 1:
                            dots1 = _add_dots(dots1, codes, at, 1, WIDTH)
                        if TOKENS > 2:
                            dots2 = _add_dots(dots2, codes, at, 2, WIDTH)
                            dots3 = _add_dots(dots3, codes, at, 3, WIDTH)
                        if TOKENS > 4:
                            dots4 = _add_dots(dots4, codes, at, 4, WIDTH)
                            dots5 = _add_dots(dots5, codes, at, 5, WIDTH)
                            dots6 = _add_dots(dots6, codes, at, 6, WIDTH)
                            dots7 = _add_dots(dots7, codes, at, 7, WIDTH)
                step, base = _steps(scales, rows, places, inside, part, CENTRE, SCALING, SIZE)
                lanes0 += _scaled(dots0, step, base, at_x, part, 0, SCALING, WIDTH)
                if TOKENS > 1:
                    lanes1 += _scaled(dots1, step, base, at_x, part, 1, SCALING, WIDTH)
                if TOKENS > 2:
                    lanes2 += _scaled(dots2, step, base, at_x, part, 2, SCALING, WIDTH)
                    lanes3 += _scaled(dots3, step, base, at_x, part, 3, SCALING, WIDTH)
                if TOKENS > 4:
                    lanes4 += _scaled(dots4, step, base, at_x, part, 4, SCALING, WIDTH)
                    lanes5 += _scaled(dots5, step, base, at_x, part, 5, SCALING, WIDTH)
                    lanes6 += _scaled(dots6, step, base, at_x, part, 6, SCALING, WIDTH)
                    lanes7 += _scaled(dots7, step, base, at_x, part, 7, SCALING, WIDTH)
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
def _add_dots(dots, codes, at, token: tl.constexpr, WIDTH: tl.constexpr):
    """Dots plus the products of the four bytes of `codes` and of the input's codes."""
    found = tl.load(at + token * (11 * WIDTH))
    if HAS_DP4A:
        dots = tl.inline_asm_elementwise(
            "dp4a.u32.s32 $0, $1, $2, $3;",
            "=r,r,r,r",
            [codes, found, dots],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        )
    else:
        shifts = 8 * tl.arange(0, 4)[None, None, :]
        factors = (codes[:, :, None] >> shifts) & 255
        signed = (found[:, :, None] << (24 - shifts)) >> 24
        dots += tl.sum(factors * signed, axis=2)
    return dots


@triton.jit
def _upper_bits(upper, quad: tl.constexpr, BITS: tl.constexpr):
    """Bits 4 and up of the four codes of a quad, whose words of upper bits are given."""
    SHIFT: tl.constexpr = (BITS - 4) * quad - 4
    if SHIFT < 0:
        bits = upper << -SHIFT
    else:
        bits = upper >> SHIFT
    return bits & (0x10101010 * ((1 << BITS - 4) - 1))


@triton.jit
def _steps(
    scales,
    rows,
    places,
    inside,
    part,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
):
    """f32[R, n] twice: the number of a code is step * code - base; 0 where not `inside`."""
    HALVES: tl.constexpr = SIZE if SCALING == "plain" else SIZE + (SIZE // 4 + 3) // 4 * 4
    at = scales + rows[:, None] * HALVES
    if SCALING == "plain":
        step = tl.load(at + places, mask=inside, other=0.0).to(tl.float32)
        base = CENTRE * step
    else:
        pairs = (at + places).to(tl.pointer_type(tl.int16), bitcast=True)
        pair = tl.load(pairs, mask=inside, other=0).to(tl.int32)
        at_units = (at + SIZE + places // 8 * 2).to(tl.pointer_type(tl.int32), bitcast=True)
        units = tl.load(at_units, mask=inside, other=0)
        unit = (units & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        if SCALING == "minima":
            lowest = (units >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            step = unit * (pair & 0xFF).to(tl.float32)
            base = lowest * ((pair >> 8) & 0xFF).to(tl.float32)
        else:
            step = unit * ((pair << (24 - 8 * part)) >> 24).to(tl.float32)
            base = CENTRE * step
    return step, base


@triton.jit
def _scaled(
    dots,
    step,
    base,
    at,
    part: tl.constexpr,
    token: tl.constexpr,
    SCALING: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """What blocks, or parts of them, add to a product; bases meet the sums of input codes."""
    at += (11 * token + 8) * WIDTH
    x_step = tl.load(at).to(tl.float32, bitcast=True)
    x_sum = tl.load(at + WIDTH).to(tl.float32, bitcast=True)
    if SCALING == "sixteens":
        first = tl.load(at + 2 * WIDTH).to(tl.float32, bitcast=True)
        x_sum = first if part == 0 else x_sum - first
    return (dots.to(tl.float32) * step - x_sum * base) * x_step


@triton.jit
def load_rows(values, rows, is_used, block, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """f32[R, BLOCK]: a block of columns of `rows` i64[R] of floats; zeros where not `is_used`."""
    columns = block * BLOCK + tl.max_contiguous(tl.arange(0, BLOCK), 4)
    inside = is_used[:, None] & (columns < SIZE)[None, :]
    found = tl.load(values + rows[:, None] * SIZE + columns[None, :], mask=inside, other=0.0)
    return found.to(tl.float32)


@triton.jit
def load_quads(
    values,
    scales,
    rows,
    is_used,
    places,
    plane,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Codes of four columns, i32[R, n], of four more unless they have 8 bits, step and base.

    Args:
        values: words of packed rows.
        scales: of the same rows.
        rows: i64[R].
        is_used: rows to read; the others are zero.
        places: i32[1, n], blocks to read.
        plane: number of their words of lower bits.
        BITS: 4, 5, 6 or 8.
        CENTRE: code that means zero.
        SCALING: see `powerinfer.ops.gpu.formats`.
        SIZE: blocks of a row.
    """
    inside = is_used[:, None] & (places < SIZE)
    at = values + rows[:, None] * (SIZE * BITS) + places
    first = tl.load(at + plane * SIZE, mask=inside, other=0)
    second = first
    if BITS < 8:
        second = (first >> 4) & 0x0F0F0F0F
        first = first & 0x0F0F0F0F
    if BITS == 5:
        upper = tl.load(at + 4 * SIZE, mask=inside, other=0) >> (2 * plane)
        first = first | ((upper & 0x01010101) << 4)
        second = second | ((upper & 0x02020202) << 3)
    if BITS == 6:
        upper = tl.load(at + (4 + plane // 2) * SIZE, mask=inside, other=0) >> (4 * (plane % 2))
        first = first | ((upper & 0x03030303) << 4)
        second = second | ((upper & 0x0C0C0C0C) << 2)
    step, base = _steps(scales, rows, places, inside, plane // 2, CENTRE, SCALING, SIZE)
    return first, second, step, base


@triton.jit
def load_quad(
    values,
    scales,
    rows,
    is_used,
    places,
    quad: tl.constexpr,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
):
    """Codes of columns 4 * quad and on of blocks, i32[R, n], their step and their base.

    Of any packed format; arguments as for `load_quads`, of which this is the general, slower form.
    """
    FIELD_BITS: tl.constexpr = 4 if BITS == 5 or BITS == 6 else BITS
    FIELDS: tl.constexpr = 8 // FIELD_BITS
    inside = is_used[:, None] & (places < SIZE)
    at = values + rows[:, None] * (SIZE * BITS) + places
    words = tl.load(at + (quad // FIELDS) * SIZE, mask=inside, other=0)
    codes = words
    if BITS < 8:
        codes = (words >> (FIELD_BITS * (quad % FIELDS))) & (0x01010101 * ((1 << FIELD_BITS) - 1))
    if BITS == 5:
        codes = codes | _upper_bits(tl.load(at + 4 * SIZE, mask=inside, other=0), quad, BITS)
    if BITS == 6:
        upper = tl.load(at + (4 + quad // 4) * SIZE, mask=inside, other=0)
        codes = codes | _upper_bits(upper, quad % 4, BITS)
    step, base = _steps(scales, rows, places, inside, quad // 4, CENTRE, SCALING, SIZE)
    return codes, step, base
