"""Values of the slots of a device: the first half of the FFN; the second is in ``down.py``.

values[t, i] = act(gate[i, :] . x[t, :]) * (up[i, :] . x[t, :]) * weight[t, i]. Slots are rows of
gate, up and transposed down; lists of them: ``listing.py``. Weights are optional: a router's, for
experts. Bound by memory: the rows of listed slots.
"""

import triton
import triton.language as tl

from powerinfer.ops.gpu.kernels.listing import list_chunks, list_places
from powerinfer.ops.gpu.kernels.overlap import begin_filling, overlapping
from powerinfer.ops.gpu.kernels.rows import dot_rows

__all__ = ["value_kernel"]


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
    UNROLLED: tl.constexpr,
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
            TOKENS, ROWS, BLOCK, BLOCKS, WIDTH, UNROLLED,
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
                TOKENS, ROWS, BLOCK, BLOCKS, WIDTH, UNROLLED,
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
            TOKENS, ROWS, BLOCK, BLOCKS, WIDTH, UNROLLED,
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
