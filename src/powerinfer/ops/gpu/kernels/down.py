"""The sum of the rows of down of a device's slots, times their values (``neurons.py``).

y[t, :] = bias + sum of values[t, i] * down[i, :], in parts that a second kernel adds up. Bound by
memory: the rows of listed slots. Sums are f32 in an order that the list alone decides.
"""

import triton
import triton.language as tl

from powerinfer.ops.gpu.kernels.listing import list_chunks, list_places, list_size
from powerinfer.ops.gpu.kernels.overlap import begin_filling, begin_small, overlapping
from powerinfer.ops.gpu.kernels.rows import load_quads, load_rows, no_tensors, zeros

__all__ = ["down_kernel", "sum_parts_kernel"]


@triton.jit
def _rows_per_part(size, PARTS: tl.constexpr, ROWS: tl.constexpr):
    """Positions that one part of the sum takes: whole tiles, so that at most PARTS are used."""
    return ROWS * tl.maximum(tl.cdiv(size, ROWS * PARTS), 1)


@overlapping
def down_kernel(
    down,
    down_scales,
    values,
    listed,
    counts,
    parts,
    active,
    num_tokens,
    num_slots,
    num_chunks,
    columns,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_LIST: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLLED: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """parts[p, t, :] = sum of values[t, place] * down[slot, :] over a stretch of the list.

    One program for a token, a block of columns and a part; parts without positions do nothing.
    UNROLLED tiles of rows are on their way at a time.
    Columns of packed rows are those of one plane of words, see `powerinfer.ops.gpu.formats`.
    """
    begin_filling()
    token = tl.program_id(0)
    block = tl.program_id(1)
    part = tl.program_id(2)
    size = num_slots
    # Not used without a list.
    starts, shifts = counts, counts
    if HAS_LIST:
        # Here and not in the loop, whose steps then need one comparison with the starts.
        size, starts, shifts = list_chunks(counts, num_chunks, CHUNKS, CHUNK)
    length = _rows_per_part(size, PARTS, ROWS)
    first = part * length
    if first >= size:
        return
    end = tl.minimum(first + length, size)
    factors = values + token * num_slots
    if BITS == 0:
        numbers = block * BLOCK + tl.arange(0, BLOCK)
        sums, tally = _sum_floats(
            down, factors, listed, starts, shifts, first, end, block,
            SIZE, HAS_LIST, ROWS, BLOCK, UNROLLED,
        )  # fmt: skip
    else:
        # Words of lower bits, and columns in each.
        PLANES: tl.constexpr = 8 if BITS == 8 else 4
        FIELDS: tl.constexpr = 32 // PLANES
        WORDS: tl.constexpr = BLOCK // FIELDS
        plane = block % PLANES
        # As many in a thread whatever their type, and rows apart from each other in none.
        words = tl.max_contiguous(tl.arange(0, WORDS), (WORDS + 31) // 32)
        words = block // PLANES * WORDS + words
        numbers = (words * 32 + plane * FIELDS)[:, None] + tl.arange(0, FIELDS)[None, :]
        sums, tally = _sum_packed(
            down, down_scales, factors, listed, starts, shifts, first, end, words, plane,
            BITS, CENTRE, SCALING, SIZE, HAS_LIST, ROWS, WORDS, FIELDS, UNROLLED,
        )  # fmt: skip
    at = parts + (part * num_tokens + token) * columns
    tl.store(at + numbers, sums, mask=numbers < columns)
    if block == 0:
        tl.store(active + part * num_tokens + token, tl.sum(tally, axis=0))


@triton.jit
def _load_factors(factors, listed, starts, shifts, positions, end, HAS_LIST: tl.constexpr):
    """Slots at positions i32[ROWS] as i64, their factors, and which are used and which are read."""
    is_inside = positions < end
    places = positions
    slots = positions
    if HAS_LIST:
        places = list_places(starts, shifts, positions)
        slots = tl.load(listed + places, mask=is_inside, other=0)
    found = tl.load(factors + places, mask=is_inside, other=0.0)
    is_used = found != 0.0
    # A list may need few of its rows; without one nearly all are needed, so none waits for factors.
    is_read = is_used if HAS_LIST else is_inside
    return slots.to(tl.int64), found, is_used, is_read


@triton.jit
def _sum_floats(
    down,
    factors,
    listed,
    starts,
    shifts,
    first,
    end,
    block,
    SIZE: tl.constexpr,
    HAS_LIST: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    """f32[BLOCK]: the sum of a block of columns; i32[ROWS]: how many rows were used."""
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    tally = tl.zeros([ROWS], tl.int32)
    for start in range(first, end, ROWS * UNROLLED):
        rows = no_tensors()
        weights = no_tensors()
        for number in tl.static_range(UNROLLED):
            positions = start + number * ROWS + tl.arange(0, ROWS)
            rows += (_load_factors(factors, listed, starts, shifts, positions, end, HAS_LIST),)
        for number in tl.static_range(UNROLLED):
            slots, found, is_used, is_read = rows[number]
            weights += (load_rows(down, slots, is_read, block, SIZE, BLOCK),)
        for number in tl.static_range(UNROLLED):
            slots, found, is_used, is_read = rows[number]
            tally += is_used.to(tl.int32)
            # Chosen, since a free slot may hold anything.
            sums += tl.where(is_used[:, None], found[:, None] * weights[number], 0.0)
    return tl.sum(sums, axis=0), tally


@triton.jit
def _sum_packed(
    down,
    down_scales,
    factors,
    listed,
    starts,
    shifts,
    first,
    end,
    words,
    plane,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
    HAS_LIST: tl.constexpr,
    ROWS: tl.constexpr,
    WORDS: tl.constexpr,
    FIELDS: tl.constexpr,
    UNROLLED: tl.constexpr,
):
    """f32[WORDS, FIELDS]: the sum of the columns in `words`; i32[ROWS]: how many rows were used."""
    sums = zeros(FIELDS, ROWS, WORDS, tl.float32)
    bases = tl.zeros([ROWS, WORDS], tl.float32)
    tally = tl.zeros([ROWS], tl.int32)
    for start in range(first, end, ROWS * UNROLLED):
        rows = no_tensors()
        codes = no_tensors()
        for number in tl.static_range(UNROLLED):
            positions = start + number * ROWS + tl.arange(0, ROWS)
            rows += (_load_factors(factors, listed, starts, shifts, positions, end, HAS_LIST),)
        for number in tl.static_range(UNROLLED):
            slots, found, is_used, is_read = rows[number]
            codes += (
                load_quads(
                    down, down_scales, slots, is_read, words[None, :], plane,
                    BITS, CENTRE, SCALING, SIZE,
                ),
            )  # fmt: skip
        for number in tl.static_range(UNROLLED):
            slots, found, is_used, is_read = rows[number]
            quads, step, base = codes[number]
            tally += is_used.to(tl.int32)
            step = found[:, None] * step
            base = found[:, None] * base
            if not HAS_LIST:
                # Chosen, since a free slot may hold anything.
                step = tl.where(is_used[:, None], step, 0.0)
                base = tl.where(is_used[:, None], base, 0.0)
            bases += base
            added = no_tensors()
            for field in tl.static_range(FIELDS):
                byte = (quads[field // 4] >> (8 * (field % 4))) & 0xFF
                added += (sums[field] + byte.to(tl.float32) * step,)
            sums = added
    totals = no_tensors()
    for field in tl.static_range(FIELDS):
        totals += (tl.sum(sums[field] - bases, axis=0),)
    # The last axes are the bits of the column's number, the highest first.
    if FIELDS == 8:
        totals = _joined(totals, 4)
    every = _joined(_joined(totals, 2), 1)[0]
    return tl.reshape(every, [WORDS, FIELDS]), tally


@triton.jit
def _joined(tensors, HALF: tl.constexpr):
    """HALF tensors with one more axis, each of two that are HALF apart."""
    pairs = no_tensors()
    for number in tl.static_range(HALF):
        pairs += (tl.join(tensors[number], tensors[number + HALF]),)
    return pairs


@overlapping
def sum_parts_kernel(
    parts,
    active,
    counts,
    tallies,
    bias,
    y,
    counters,
    num_tokens,
    num_slots,
    num_chunks,
    columns,
    HAS_LIST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_COUNTERS: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """y[t, :] = bias + sum of the parts; one program adds to the counters."""
    begin_small()
    token = tl.program_id(0)
    block = tl.program_id(1)
    size = num_slots
    if HAS_LIST:
        size = list_size(counts, num_chunks, CHUNKS)
    used = tl.cdiv(size, _rows_per_part(size, PARTS, ROWS))
    numbers = block * BLOCK + tl.arange(0, BLOCK)
    is_column = numbers < columns
    part = tl.arange(0, PARTS)
    at = parts + ((part * num_tokens + token) * columns)[:, None] + numbers[None, :]
    inside = (part < used)[:, None] & is_column[None, :]
    total = tl.sum(tl.load(at, mask=inside, other=0.0), axis=0)
    if HAS_BIAS:
        total += tl.load(bias + numbers, mask=is_column, other=0.0)
    tl.store(y + token * columns + numbers, total, mask=is_column)
    if HAS_COUNTERS:
        if token + block == 0:
            every = tl.arange(0, PARTS * TOKENS)
            found = tl.load(active + every, mask=every < used * num_tokens, other=0)
            _count(counters, tl.sum(found, axis=0))
            chunks = tl.arange(0, CHUNKS)
            pairs = tl.load(tallies + 2 * chunks, mask=chunks < num_chunks, other=0)
            _count(counters + 1, tl.sum(pairs, axis=0))
            read = tl.load(tallies + 2 * chunks + 1, mask=chunks < num_chunks, other=0)
            _count(counters + 2, tl.sum(read, axis=0))


@triton.jit
def _count(counter, number):
    tl.store(counter, tl.load(counter) + number.to(tl.int64))
