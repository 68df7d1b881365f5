"""Rotary embedding fused with the write into the paged cache: one program per token and head.

Rotates (a, b) to (a cos - b sin, a sin + b cos) in place; a program of a key head also stores the
rotated key and the value, as f16 or as Q8_0: a scale for 32 numbers, d = (largest magnitude) / 127,
and codes rounded to nearest, ties away from zero. Bound by the launch: a few KiB per token.
"""

from typing import Any

import triton
import triton.language as tl

__all__ = ["rope_and_store", "rope_and_store_kernel"]

_BLOCK = tl.constexpr(32)


@triton.jit
def _rotated(
    x,
    cos,
    sin,
    position,
    dim,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
):
    """One head f32[BLOCK_D] at `x`, rotated; dimensions from ROTARY_DIM on pass through."""
    values = tl.load(x + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
    if ROTARY_DIM > 0:
        HALF: tl.constexpr = ROTARY_DIM // 2
        rotates = dim < ROTARY_DIM
        if IS_INTERLEAVED:
            is_left = dim % 2 == 0
            pair = dim // 2
            partner = tl.where(is_left, dim + 1, dim - 1)
        else:
            is_left = dim < HALF
            pair = tl.where(is_left, dim, dim - HALF)
            partner = tl.where(is_left, dim + HALF, dim - HALF)
        angle = position.to(tl.int64) * HALF + pair
        others = tl.load(x + partner, mask=rotates, other=0.0).to(tl.float32)
        c = tl.load(cos + angle, mask=rotates, other=1.0).to(tl.float32)
        s = tl.load(sin + angle, mask=rotates, other=0.0).to(tl.float32)
        values = values * c + tl.where(is_left, -others, others) * s
    return values


@triton.jit
def _store(
    cache,
    scales,
    row,
    values,
    dim,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    IS_Q8: tl.constexpr,
):
    """Write one head f32[BLOCK_D] as row `row` of the cache."""
    valid = dim < HEAD_DIM
    if IS_Q8:
        blocks = tl.reshape(values, (BLOCK_D // _BLOCK, _BLOCK))
        d = tl.div_rn(tl.max(tl.abs(blocks), axis=1), 127.0)
        # Below 2^-126 the inverse would overflow; such a scale is zero as a half.
        is_tiny = d < 1.1754943508222875e-38
        inverse = tl.where(is_tiny, 0.0, tl.div_rn(1.0, tl.where(is_tiny, 1.0, d)))
        steps = blocks * inverse[:, None]
        whole = tl.floor(tl.abs(steps))
        nearest = tl.where(tl.abs(steps) - whole >= 0.5, whole + 1.0, whole)
        codes = tl.where(steps < 0, -nearest, nearest).to(tl.int8)
        tl.store(cache + row * HEAD_DIM + dim, tl.reshape(codes, (BLOCK_D,)), mask=valid)
        block = tl.arange(0, BLOCK_D // _BLOCK)
        where = scales + row * (HEAD_DIM // _BLOCK) + block
        tl.store(where, d.to(tl.float16), mask=block < HEAD_DIM // _BLOCK)
    else:
        tl.store(cache + row * HEAD_DIM + dim, values.to(tl.float16), mask=valid)


@triton.jit
def rope_and_store_kernel(
    q,
    k,
    v,
    cos,
    sin,
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
    num_heads,
    num_kv_heads,
    block_size,
    HEAD_DIM: tl.constexpr,
    ROTARY_DIM: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    IS_Q8: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Token `program_id(0)`; `program_id(1)` counts the query heads, then the key heads."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK_D)
    position = tl.load(positions + token)
    if head < num_heads:
        x = q + token * q_stride + head * HEAD_DIM
        rotated = _rotated(x, cos, sin, position, dim, HEAD_DIM, ROTARY_DIM, IS_INTERLEAVED)
        if ROTARY_DIM > 0:
            # A thread reads the partners of its numbers, which others are about to overwrite.
            tl.debug_barrier()
            tl.store(x + dim, rotated, mask=dim < ROTARY_DIM)
    else:
        kv_head = head - num_heads
        x = k + token * k_stride + kv_head * HEAD_DIM
        rotated = _rotated(x, cos, sin, position, dim, HEAD_DIM, ROTARY_DIM, IS_INTERLEAVED)
        if ROTARY_DIM > 0:
            tl.debug_barrier()
            tl.store(x + dim, rotated, mask=dim < ROTARY_DIM)
        sequence = tl.load(sequences + token).to(tl.int64)
        entry = block_tables + sequence * table_width + position // block_size
        slot = tl.load(entry).to(tl.int64) * block_size + position % block_size
        row = slot * num_kv_heads + kv_head
        _store(keys, key_scales, row, rotated, dim, HEAD_DIM, BLOCK_D, IS_Q8)
        source = v + token * v_stride + kv_head * HEAD_DIM + dim
        value = tl.load(source, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        _store(values, value_scales, row, value, dim, HEAD_DIM, BLOCK_D, IS_Q8)


def rope_and_store(
    q: Any, k: Any, v: Any, cache: Any, batch: Any, angles: tuple[Any, Any, bool] | None
) -> None:
    """Rotate q and k in place, then write k and v into the cache.

    Args:
        q: f32[num_tokens, num_heads * head_dim], rows contiguous.
        k: f32[num_tokens, num_kv_heads * head_dim], rows contiguous.
        v: the same shape.
        cache: a `powerinfer.ops.torch_gpu_attention.DeviceKV`.
        batch: a `powerinfer.ops.torch_gpu_batch.DeviceBatch`.
        angles: cos and sin f32[context_length, rotary_dim / 2] and whether pairs are interleaved;
            None where nothing rotates.
    """
    num_tokens = q.shape[0]
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads = q.shape[1] // head_dim
    cos, sin, is_interleaved = (q, q, False) if angles is None else angles
    rope_and_store_kernel[(num_tokens, num_heads + num_kv_heads)](
        q,
        k,
        v,
        cos,
        sin,
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
        num_heads,
        num_kv_heads,
        cache.block_size,
        HEAD_DIM=head_dim,
        ROTARY_DIM=0 if angles is None else 2 * cos.shape[1],
        IS_INTERLEAVED=is_interleaved,
        IS_Q8=cache.is_q8,
        BLOCK_D=int(triton.next_power_of_2(head_dim)),
        # One or two numbers in each thread at the usual widths of 64 and 128.
        num_warps=1 if head_dim <= 64 else 2,
    )
