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

__all__ = ["dot_rows", "load_quads", "load_rows", "no_tensors", "zeros"]

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
    UNROLLED: tl.constexpr,
):
    """f32[TOKENS, ROWS]: products of `rows` i64[ROWS] with every token.

    Floats meet x f32[num_tokens, x_columns] less `center`, packed codes meet `x_blocks`. Rows that
    are not `is_used` are not read. UNROLLED blocks of floats are on their way at a time.

    Sums stay apart per column or block until the end, so that threads meet once. They are a matrix
    per token and not one of three dimensions, whose layout in registers would be another than that
    of the weights: every block of them would pass through shared memory.
    """
    if BITS == 0:
        lanes = _float_lanes(
            x, center, values, rows, is_used, num_tokens, x_columns,
            SIZE, HAS_CENTER, TOKENS, ROWS, BLOCK, UNROLLED,
        )  # fmt: skip
    else:
        lanes = _packed_lanes(
            x_blocks, values, scales, rows, is_used,
            BITS, CENTRE, SCALING, SIZE, TOKENS, ROWS, BLOCKS, WIDTH,
        )  # fmt: skip
    sums = tl.sum(lanes[0], axis=1)[None, :]
    tokens = tl.arange(0, TOKENS)[:, None]
    for token in tl.static_range(1, TOKENS):
        sums = tl.where(tokens == token, tl.sum(lanes[token], axis=1)[None, :], sums)
    return sums


@triton.jit
def no_tensors():
    """An empty tuple to add to. Tuples stand for arrays of registers, which Triton lacks."""
    return ()


@triton.jit
def zeros(COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, dtype: tl.constexpr):
    """COUNT matrices of zeros [ROWS, COLUMNS]: sums, which are replaced and never written to."""
    matrices = no_tensors()
    for _ in tl.static_range(COUNT):
        matrices += (tl.zeros([ROWS, COLUMNS], dtype),)
    return matrices


@triton.jit
def _float_lanes(
    x,
    center,
    values,
    rows,
    is_used,
    num_tokens,
    x_columns,
    SIZE: tl.constexpr,
    HAS_CENTER: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    """Products of floats by token: f32[ROWS, BLOCK], apart per column of a block."""
    lanes = zeros(TOKENS, ROWS, BLOCK, tl.float32)
    # The number of long strides is constant, so that few of them become code without a branch.
    columns = SIZE if UNROLLED > 1 else x_columns
    for block in range(0, tl.cdiv(columns, BLOCK), UNROLLED):
        tiles = no_tensors()
        for number in tl.static_range(UNROLLED):
            tiles += (load_rows(values, rows, is_used, block + number, SIZE, BLOCK),)
        for number in tl.static_range(UNROLLED):
            added = no_tensors()
            for token in tl.static_range(TOKENS):
                seen = _seen(
                    x, center, token, block + number, num_tokens, x_columns, HAS_CENTER, BLOCK
                )
                added += (lanes[token] + tiles[number] * seen,)
            lanes = added
    return lanes


@triton.jit
def _packed_lanes(
    x_blocks,
    values,
    scales,
    rows,
    is_used,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Products of packed codes by token: f32[ROWS, BLOCKS], apart per block of a tile."""
    lanes = zeros(TOKENS, ROWS, BLOCKS, tl.float32)
    # As many in a thread whatever their type, or tiles would have to change places.
    numbers = tl.max_contiguous(tl.arange(0, BLOCKS), (BLOCKS + 31) // 32)
    # Fields of a word; parts of a block that have scales of their own; words of lower bits in each.
    FIELDS: tl.constexpr = 2 if BITS == 5 or BITS == 6 else 8 // BITS
    PARTS: tl.constexpr = 2 if SCALING == "sixteens" else 1
    PLANES: tl.constexpr = 8 // (FIELDS * PARTS)
    for block in range(WIDTH // BLOCKS):
        places = (block * BLOCKS + numbers)[None, :]
        inside = is_used[:, None] & (places < SIZE)
        at_words = values + rows[:, None] * (SIZE * BITS) + places
        at_x = x_blocks + places
        for part in tl.static_range(PARTS):
            dots = zeros(TOKENS, ROWS, BLOCKS, tl.int32)
            upper = _load_upper(at_words, part, inside, BITS, SIZE)
            for plane in tl.static_range(PLANES):
                at = at_words + (part * PLANES + plane) * SIZE
                words = tl.load(at, mask=inside, other=0)
                for field in tl.static_range(FIELDS):
                    codes = _codes(words, upper, field, plane * FIELDS + field, BITS)
                    at = at_x + ((part * PLANES + plane) * FIELDS + field) * WIDTH
                    added = no_tensors()
                    for token in tl.static_range(TOKENS):
                        added += (_add_dots(dots[token], codes, at, token, WIDTH),)
                    dots = added
            step, base = _steps(scales, rows, places, inside, part, CENTRE, SCALING, SIZE)
            added = no_tensors()
            for token in tl.static_range(TOKENS):
                scaled = _scaled(dots[token], step, base, at_x, part, token, SCALING, WIDTH)
                added += (lanes[token] + scaled,)
            lanes = added
    return lanes


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
def _load_upper(at_words, part, inside, BITS: tl.constexpr, SIZE: tl.constexpr):
    """Words of the upper bits of a part of blocks, whose first words are at `at_words`."""
    upper = 0
    if BITS == 5:
        upper = tl.load(at_words + 4 * SIZE, mask=inside, other=0)
    if BITS == 6:
        upper = tl.load(at_words + (4 + part) * SIZE, mask=inside, other=0)
    return upper


@triton.jit
def _codes(words, upper, field: tl.constexpr, quad: tl.constexpr, BITS: tl.constexpr):
    """A field of `words`, four codes in the bytes of i32; their upper bits are quad `quad`."""
    FIELD_BITS: tl.constexpr = 4 if BITS == 5 or BITS == 6 else BITS
    codes = words
    if BITS < 8:
        codes = (words >> (FIELD_BITS * field)) & (0x01010101 * ((1 << FIELD_BITS) - 1))
    if FIELD_BITS < BITS:
        SHIFT: tl.constexpr = (BITS - 4) * quad - 4
        upper = upper << -SHIFT if SHIFT < 0 else upper >> SHIFT
        codes = codes | (upper & (0x10101010 * ((1 << BITS - 4) - 1)))
    return codes


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
    """The fields of one word of blocks, each i32[R, n] of four codes, and their step and base.

    Args:
        values: words of packed rows.
        scales: of the same rows.
        rows: i64[R].
        is_used: rows to read; the others are zero.
        places: i32[1, n], blocks to read.
        plane: number of their words of lower bits.
        BITS: of a code.
        CENTRE: code that means zero.
        SCALING: see `powerinfer.ops.gpu.formats`.
        SIZE: blocks of a row.
    """
    FIELDS: tl.constexpr = 2 if BITS == 5 or BITS == 6 else 8 // BITS
    # Blocks of less than five bits and of eight have no parts.
    part = plane // 2
    inside = is_used[:, None] & (places < SIZE)
    at = values + rows[:, None] * (SIZE * BITS) + places
    words = tl.load(at + plane * SIZE, mask=inside, other=0)
    upper = _load_upper(at, part, inside, BITS, SIZE)
    if BITS == 5:
        upper = upper >> (2 * plane)
    if BITS == 6:
        upper = upper >> (4 * (plane % 2))
    quads = no_tensors()
    for field in tl.static_range(FIELDS):
        quads += (_codes(words, upper, field, field, BITS),)
    step, base = _steps(scales, rows, places, inside, part, CENTRE, SCALING, SIZE)
    return quads, step, base
