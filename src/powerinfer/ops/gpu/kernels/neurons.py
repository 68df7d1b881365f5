"""The FFN over the slots of a device: their values, then the sum of their rows of down.

values[t, i] = act(gate[i, :] . x[t, :]) * (up[i, :] . x[t, :]) * weight[t, i]; y[t, :] = sum of
values[t, i] * down[i, :]. Slots are rows of gate, up and transposed down; lists of them:
``listing.py``. Weights are optional: a router's, for experts. Bound by memory: the rows of listed
slots. Sums are f32 in an order that the list alone decides.
"""

import triton
import triton.language as tl

from powerinfer.ops.gpu.kernels.listing import list_chunks, list_places, list_size
from powerinfer.ops.gpu.kernels.overlap import begin_filling, begin_small, overlapping
from powerinfer.ops.gpu.kernels.rows import dot_rows, load_quads, load_rows

__all__ = ["down_kernel", "sum_parts_kernel", "value_kernel"]


@triton.jit
def _not_below_zero(x):
    """max(x, 0) that lets NaN pass."""
    return tl.where(x <= 0.0, 0.0, x)


@triton.jit
def _activated(first, threshold, KIND: tl.constexpr):
    """The activation function of what decides: gate, or up in an ungated block."""
    if KIND == "silu":
        result = first / (1.0 + tl.exp(-first))
    elif KIND == "gelu":
        # The tanh form; tanh z = 1 - 2 / (exp 2z + 1), sqrt(2 / pi) = 0.7978845608.
        inner = 0.7978845608028654 * (first + 0.044715 * first * first * first)
        result = first * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))
    elif KIND == "fatrelu":
        result = tl.where(first < threshold, 0.0, first)
    elif KIND == "clamped_swiglu":
        clamped = tl.where(first > 7.0, 7.0, first)
        result = clamped / (1.0 + tl.exp(-1.702 * clamped))
    elif KIND == "relu2":
        kept = _not_below_zero(first)
        result = kept * kept
    else:
        result = _not_below_zero(first)
    return result


@overlapping
def value_kernel(
    x,
    x_blocks,
    gate,
    gate_scales,
    gate_bias,
    up,
    up_scales,
    up_bias,
    neuron_of_slot,
    mask,
    listed,
    counts,
    weights,
    values,
    threshold,
    num_tokens,
    num_slots,
    num_neurons,
    num_chunks,
    num_weights,
    x_columns,
    GATE_BITS: tl.constexpr,
    GATE_CENTRE: tl.constexpr,
    GATE_SCALING: tl.constexpr,
    GATE_SIZE: tl.constexpr,
    UP_BITS: tl.constexpr,
    UP_CENTRE: tl.constexpr,
    UP_SCALING: tl.constexpr,
    UP_SIZE: tl.constexpr,
    HAS_GATE: tl.constexpr,
    HAS_GATE_BIAS: tl.constexpr,
    HAS_UP_BIAS: tl.constexpr,
    HAS_LIST: tl.constexpr,
    HAS_WEIGHTS: tl.constexpr,
    IS_SKIPPING: tl.constexpr,
    KIND: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """values[t, place]: what scales the down row of a slot. One program for ROWS slots.

    With a list a place is one of `listed`, else the slot itself; free slots get 0. Weights
    f32[num_tokens, num_weights] scale the values, each those of as many neurons in order. With
    IS_SKIPPING rows of up are read for slots whose gate fires for some token.
    """
    begin_filling()
    positions = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    tokens = tl.arange(0, TOKENS)
    is_token = tokens < num_tokens
    if HAS_LIST:
        size, starts, shifts = list_chunks(counts, num_chunks, CHUNKS, CHUNK)
        if tl.program_id(0) * ROWS >= size:
            return
        places = list_places(starts, shifts, positions)
        is_place = positions < size
        slots = tl.load(listed + places, mask=is_place, other=0)
        neurons = tl.load(neuron_of_slot + slots, mask=is_place, other=0)
        is_used = is_place
        at = mask + tokens[:, None] * num_neurons + neurons[None, :]
        passed = tl.load(at, mask=is_token[:, None] & is_place[None, :], other=0)
        counted = passed != 0
    else:
        places = positions
        is_place = positions < num_slots
        slots = positions
        neurons = tl.load(neuron_of_slot + slots, mask=is_place, other=-1)
        is_used = neurons >= 0
        counted = is_token[:, None] & is_used[None, :]
    rows = slots.to(tl.int64)
    if HAS_GATE:
        first = dot_rows(
            x, x_blocks, x, gate, gate_scales, rows, is_used, num_tokens, x_columns,
            GATE_BITS, GATE_CENTRE, GATE_SCALING, GATE_SIZE, False,
            TOKENS, ROWS, BLOCK, BLOCKS, WIDTH,
        )  # fmt: skip
        if HAS_GATE_BIAS:
            first += tl.load(gate_bias + slots, mask=is_used, other=0.0)[None, :]
        if IS_SKIPPING:
            if KIND == "fatrelu":
                counted = counted & ~(first < threshold)
            else:
                counted = counted & ~(first <= 0.0)
            is_used = tl.max(counted.to(tl.int32), axis=0) != 0
        second = tl.zeros([TOKENS, ROWS], tl.float32)
        if tl.max(is_used.to(tl.int32), axis=0) != 0:
            second = dot_rows(
                x, x_blocks, x, up, up_scales, rows, is_used, num_tokens, x_columns,
                UP_BITS, UP_CENTRE, UP_SCALING, UP_SIZE, False,
                TOKENS, ROWS, BLOCK, BLOCKS, WIDTH,
            )  # fmt: skip
            if HAS_UP_BIAS:
                second += tl.load(up_bias + slots, mask=is_used, other=0.0)[None, :]
        if KIND == "drelu":
            second = _not_below_zero(second)
        if KIND == "clamped_swiglu":
            # Comparisons let NaN pass.
            second = tl.where(second > 7.0, 7.0, tl.where(second < -7.0, -7.0, second)) + 1.0
        result = _activated(first, threshold, KIND) * second
    else:
        first = dot_rows(
            x, x_blocks, x, up, up_scales, rows, is_used, num_tokens, x_columns,
            UP_BITS, UP_CENTRE, UP_SCALING, UP_SIZE, False,
            TOKENS, ROWS, BLOCK, BLOCKS, WIDTH,
        )  # fmt: skip
        if HAS_UP_BIAS:
            first += tl.load(up_bias + slots, mask=is_used, other=0.0)[None, :]
        result = _activated(first, threshold, KIND)
    if HAS_WEIGHTS:
        weighing = neurons // (num_neurons // num_weights)
        at = weights + tokens[:, None] * num_weights + weighing[None, :]
        result *= tl.load(at, mask=counted, other=0.0)
    # Chosen, not multiplied: what does not count may be infinite.
    result = tl.where(counted, result, 0.0)
    at = values + tokens[:, None] * num_slots + places[None, :]
    tl.store(at, result, mask=is_token[:, None] & is_place[None, :])


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
    CHUNKS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """parts[p, t, :] = sum of values[t, place] * down[slot, :] over a stretch of the list.

    One program for a token, a block of columns and a part; parts without positions do nothing.
    Columns of packed rows are those of one plane of words, see `powerinfer.ops.gpu.formats`.
    """
    begin_filling()
    token = tl.program_id(0)
    block = tl.program_id(1)
    part = tl.program_id(2)
    size = num_slots
    if HAS_LIST:
        # Here and not in the loop, whose steps then need one comparison with the starts.
        size, starts, shifts = list_chunks(counts, num_chunks, CHUNKS, CHUNK)
    length = _rows_per_part(size, PARTS, ROWS)
    first = part * length
    if first >= size:
        return
    end = tl.minimum(first + length, size)
    # Words of lower bits, and columns in each.
    PLANES: tl.constexpr = 8 if BITS == 8 else 4
    FIELDS: tl.constexpr = 32 // PLANES
    WORDS: tl.constexpr = BLOCK // FIELDS
    plane = block % PLANES
    # As many in a thread whatever their type, and rows apart from each other in none.
    words = tl.max_contiguous(tl.arange(0, WORDS), (WORDS + 31) // 32)
    words = block // PLANES * WORDS + words
    sums = tl.zeros([ROWS, BLOCK], tl.float32)
    sums0 = tl.zeros([ROWS, WORDS], tl.float32)
    sums1 = sums0
    sums2 = sums0
    sums3 = sums0
    sums4 = sums0
    sums5 = sums0
    sums6 = sums0
    sums7 = sums0
    bases = sums0
    tally = tl.zeros([ROWS], tl.int32)
    for start in range(first, end, ROWS):
        positions = start + tl.arange(0, ROWS)
        is_inside = positions < end
        if HAS_LIST:
            places = list_places(starts, shifts, positions)
            slots = tl.load(listed + places, mask=is_inside, other=0)
        else:
            places = positions
            slots = positions
        factors = tl.load(values + token * num_slots + places, mask=is_inside, other=0.0)
        is_used = factors != 0.0
        tally += is_used.to(tl.int32)
        # Of a list few rows may be needed; of all slots nearly all are, so none waits for factors.
        is_read = is_used if HAS_LIST else is_inside
        # Below: chosen, since a free slot may hold anything.
        if BITS == 0:
            weights = load_rows(down, slots.to(tl.int64), is_read, block, SIZE, BLOCK)
            sums += tl.where(is_used[:, None], factors[:, None] * weights, 0.0)
        else:
            low, high, step, base = load_quads(
                down, down_scales, slots.to(tl.int64), is_read, words[None, :], plane,
                BITS, CENTRE, SCALING, SIZE,
            )  # fmt: skip
            step = factors[:, None] * step
            base = factors[:, None] * base
            if not HAS_LIST:
                step = tl.where(is_used[:, None], step, 0.0)
                base = tl.where(is_used[:, None], base, 0.0)
            bases += base
            sums0 += _byte(low, 0) * step
            sums1 += _byte(low, 1) * step
            sums2 += _byte(low, 2) * step
            sums3 += _byte(low, 3) * step
            if FIELDS == 8:
                sums4 += _byte(high, 0) * step
                sums5 += _byte(high, 1) * step
                sums6 += _byte(high, 2) * step
                sums7 += _byte(high, 3) * step
    at = parts + (part * num_tokens + token) * columns
    if BITS == 0:
        numbers = block * BLOCK + tl.arange(0, BLOCK)
        tl.store(at + numbers, tl.sum(sums, axis=0), mask=numbers < columns)
    else:
        total0 = tl.sum(sums0 - bases, axis=0)
        total1 = tl.sum(sums1 - bases, axis=0)
        total2 = tl.sum(sums2 - bases, axis=0)
        total3 = tl.sum(sums3 - bases, axis=0)
        # The last axes are the bits of the column's number, the highest first.
        if FIELDS == 8:
            total4 = tl.sum(sums4 - bases, axis=0)
            total5 = tl.sum(sums5 - bases, axis=0)
            total6 = tl.sum(sums6 - bases, axis=0)
            total7 = tl.sum(sums7 - bases, axis=0)
            even = tl.join(tl.join(total0, total4), tl.join(total2, total6))
            odd = tl.join(tl.join(total1, total5), tl.join(total3, total7))
        else:
            even = tl.join(total0, total2)
            odd = tl.join(total1, total3)
        every = tl.reshape(tl.join(even, odd), [WORDS, FIELDS])
        numbers = (words * 32 + plane * FIELDS)[:, None] + tl.arange(0, FIELDS)[None, :]
        tl.store(at + numbers, every, mask=numbers < columns)
    if block == 0:
        tl.store(active + part * num_tokens + token, tl.sum(tally, axis=0))


@triton.jit
def _byte(words, place: tl.constexpr):
    return ((words >> (8 * place)) & 0xFF).to(tl.float32)


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
