"""Head norms and rotary embedding with the write into the paged cache: some heads a program.

Where there are norms, x becomes x / sqrt(mean(x^2) + eps) * w in each head. Then (a, b) turns to
(a cos - b sin, a sin + b cos), all in place. A program of a key head also stores the rotated key
and the value, as f16 or as Q8_0: a scale for 32 numbers, d = (largest magnitude) / 127, and codes
rounded to nearest, ties away from zero. Bound by the launch: a few KiB per token.
"""

from typing import TypeAlias

import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.cache import DeviceBatch, DeviceKV
from powerinfer.ops.gpu.kernels.overlap import begin_small, overlapping
from powerinfer.ops.operands import HeadNorms

__all__ = ["Angles", "rope_and_store", "rope_and_store_kernel"]

Angles: TypeAlias = tuple[Tensor, Tensor, bool]
"""cos and sin, f32[context_length, rotary_dim / 2] each, and whether pairs are interleaved."""

_BLOCK = tl.constexpr(32)

# Heads of one program: 4 numbers in each thread at a width of 128, so that a decode step spreads
# over many processors; 16 where there is enough work for all of them.
_FEW_ROWS, _MANY_ROWS = 4, 16
_MOST_FEW = 4096


@triton.jit
def _rotated(
    x,
    is_row,
    cos,
    sin,
    norm,
    eps,
    position,
    dim,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Heads f32[ROWS, BLOCK_D] at `x`, rotated; dimensions from ROTARY_DIM on do not turn."""
    inside = is_row[:, None] & (dim < HEAD_DIM)[None, :]
    values = tl.load(x[:, None] + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    if HAS_NORM:
        mean = tl.sum(values * values, axis=1) / HEAD_DIM
        inverse = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
        weight = tl.load(norm + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        values = values * inverse[:, None] * weight[None, :]
    if ROTARY_DIM > 0:
        HALF: tl.constexpr = ROTARY_DIM // 2
        if IS_INTERLEAVED:
            is_left = dim % 2 == 0
            pair = dim // 2
            partner = tl.where(is_left, dim + 1, dim - 1)
        else:
            is_left = dim < HALF
            pair = tl.where(is_left, dim, dim - HALF)
            partner = tl.where(is_left, dim + HALF, dim - HALF)
        rotates = is_row[:, None] & (dim < ROTARY_DIM)[None, :]
        angle = position.to(tl.int64)[:, None] * HALF + pair[None, :]
        other = tl.load(x[:, None] + partner[None, :], mask=rotates, other=0.0).to(tl.float32)
        if HAS_NORM:
            partner_weight = tl.load(norm + partner, mask=dim < ROTARY_DIM, other=0.0)
            other = other * inverse[:, None] * partner_weight.to(tl.float32)[None, :]
        c = tl.load(cos + angle, mask=rotates, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=rotates, other=0.0).to(tl.float32)
        values = values * c + tl.where(is_left[None, :], -other, other) * s
    return values


@triton.jit
def _put_back(
    x,
    is_row,
    values,
    dim,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Write heads f32[ROWS, BLOCK_D] to where they came from, if they changed."""
    if ROTARY_DIM > 0 or HAS_NORM:
        # A thread reads the partners of its numbers, which others are about to overwrite.
        tl.debug_barrier()
        WIDTH: tl.constexpr = HEAD_DIM if HAS_NORM else ROTARY_DIM
        changed = is_row[:, None] & (dim < WIDTH)[None, :]
        tl.store(x[:, None] + dim[None, :], values, mask=changed)


@triton.jit
def _store(
    cache,
    scales,
    slot,
    is_row,
    values,
    dim,
    HEAD_DIM: tl.constexpr,
    IS_Q8: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Write heads f32[ROWS, BLOCK_D] to the places `slot` of the cache, counted in heads."""
    inside = is_row[:, None] & (dim < HEAD_DIM)[None, :]
    target = cache + slot[:, None] * HEAD_DIM + dim[None, :]
    if IS_Q8:
        blocks = tl.reshape(values, (ROWS, BLOCK_D // _BLOCK, _BLOCK))
        # A NaN makes its whole block NaN, by the scale.
        is_number = blocks == blocks
        largest = tl.max(tl.where(is_number, tl.abs(blocks), 0.0), axis=2)
        num_damaged = tl.sum(tl.where(is_number, 0, 1), axis=2)
        d = tl.where(num_damaged > 0, float("nan"), tl.div_rn(largest, 127.0))
        # Below 2^-126 the inverse would overflow; such a scale is zero as a half.
        is_tiny = d < 1.1754943508222875e-38
        inverse = tl.where(is_tiny, 0.0, tl.div_rn(1.0, tl.where(is_tiny, 1.0, d)))
        steps = blocks * inverse[:, :, None]
        whole = tl.floor(tl.abs(steps))
        nearest = tl.where(tl.abs(steps) - whole >= 0.5, whole + 1.0, whole)
        signed = tl.where(steps < 0, -nearest, nearest)
        codes = tl.where(steps == steps, signed, 0.0).to(tl.int8)
        tl.store(target, tl.reshape(codes, (ROWS, BLOCK_D)), mask=inside)
        block = tl.arange(0, BLOCK_D // _BLOCK)
        is_block = is_row[:, None] & (block < HEAD_DIM // _BLOCK)[None, :]
        where = scales + slot[:, None] * (HEAD_DIM // _BLOCK) + block[None, :]
        tl.store(where, d.to(tl.float16), mask=is_block)
    else:
        tl.store(target, values.to(tl.float16), mask=inside)


@overlapping
def rope_and_store_kernel(
    q,
    k,
    v,
    cos,
    sin,
    q_norm,
    k_norm,
    positions,
    sequences,
    block_tables,
    keys,
    values,
    key_scales,
    value_scales,
    q_stride,
    k_stride,
    v_stride,
    table_width,
    num_tokens,
    num_heads,
    num_kv_heads,
    block_size,
    eps,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    IS_Q8: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """ROWS heads of all tokens in order; the first programs have queries, the others keys."""
    begin_small()
    program = tl.program_id(0)
    num_query_programs = (num_tokens * num_heads + ROWS - 1) // ROWS
    dim = tl.arange(0, BLOCK_D)
    if program < num_query_programs:
        row = program * ROWS + tl.arange(0, ROWS)
        is_row = row < num_tokens * num_heads
        token = (row // num_heads).to(tl.int64)
        position = tl.load(positions + token, mask=is_row, other=0)
        x = q + token * q_stride + (row % num_heads) * HEAD_DIM
        rotated = _rotated(
            x,
            is_row,
            cos,
            sin,
            q_norm,
            eps,
            position,
            dim,
            HEAD_DIM,
            ROTARY_DIM,
            IS_INTERLEAVED,
            HAS_NORM,
        )
        _put_back(x, is_row, rotated, dim, HEAD_DIM, ROTARY_DIM, HAS_NORM)
    else:
        row = (program - num_query_programs) * ROWS + tl.arange(0, ROWS)
        is_row = row < num_tokens * num_kv_heads
        token = (row // num_kv_heads).to(tl.int64)
        head = row % num_kv_heads
        position = tl.load(positions + token, mask=is_row, other=0)
        x = k + token * k_stride + head * HEAD_DIM
        rotated = _rotated(
            x,
            is_row,
            cos,
            sin,
            k_norm,
            eps,
            position,
            dim,
            HEAD_DIM,
            ROTARY_DIM,
            IS_INTERLEAVED,
            HAS_NORM,
        )
        _put_back(x, is_row, rotated, dim, HEAD_DIM, ROTARY_DIM, HAS_NORM)
        sequence = tl.load(sequences + token, mask=is_row, other=0).to(tl.int64)
        entry = block_tables + sequence * table_width + position // block_size
        block = tl.load(entry, mask=is_row, other=0).to(tl.int64)
        slot = (block * block_size + position % block_size) * num_kv_heads + head
        _store(keys, key_scales, slot, is_row, rotated, dim, HEAD_DIM, IS_Q8, ROWS, BLOCK_D)
        source = v + token * v_stride + head * HEAD_DIM
        inside = is_row[:, None] & (dim < HEAD_DIM)[None, :]
        value = tl.load(source[:, None] + dim[None, :], mask=inside, other=0.0).to(tl.float32)
        _store(values, value_scales, slot, is_row, value, dim, HEAD_DIM, IS_Q8, ROWS, BLOCK_D)


def rope_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: DeviceKV,
    batch: DeviceBatch,
    angles: Angles | None,
    norms: HeadNorms[Tensor] | None = None,
) -> None:
    """Normalise and rotate q and k in place, then write k and v into the cache.

    Args:
        q: f32[num_tokens, num_heads * head_dim], rows contiguous.
        k: f32[num_tokens, num_kv_heads * head_dim], rows contiguous.
        angles: cos and sin f32[context_length, rotary_dim / 2] and whether pairs are interleaved;
            None if nothing rotates.
        norms: of the heads of q and k, before they rotate; None for none.
    """
    num_tokens = q.shape[0]
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads = q.shape[1] // head_dim
    rows = _FEW_ROWS if num_tokens * num_heads <= _MOST_FEW else _MANY_ROWS
    programs = triton.cdiv(num_tokens * num_heads, rows)
    programs += triton.cdiv(num_tokens * num_kv_heads, rows)
    cos, sin, is_interleaved = (q, q, False) if angles is None else angles
    rope_and_store_kernel[(programs,)](
        q,
        k,
        v,
        cos,
        sin,
        q if norms is None else norms.q,
        q if norms is None else norms.k,
        batch.positions,
        batch.sequences,
        batch.block_tables,
        cache.keys,
        cache.values,
        cache.key_scales,
        cache.value_scales,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        batch.block_tables.shape[1],
        num_tokens,
        num_heads,
        num_kv_heads,
        cache.block_size,
        0.0 if norms is None else norms.eps,
        HEAD_DIM=head_dim,
        ROTARY_DIM=0 if angles is None else 2 * cos.shape[1],
        IS_INTERLEAVED=is_interleaved,
        HAS_NORM=norms is not None,
        IS_Q8=cache.is_q8,
        ROWS=rows,
        BLOCK_D=int(triton.next_power_of_2(head_dim)),
        num_warps=4,
    )
