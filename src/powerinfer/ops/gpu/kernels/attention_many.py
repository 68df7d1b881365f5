"""Causal grouped-query attention of many tokens over the paged cache, by tiles of queries.

A program per query head and tile of tokens of one sequence (FlashAttention, arXiv 2205.14135):
out[t, h] = sum over p of softmax_p(q[t, h] . k[p] * scale) v[p] without the scores in memory; soft
caps and sinks as in `attention`. Bound by the products.
"""

import torch
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.cache import QUERY_TILE, DeviceBatch, DeviceKV
from powerinfer.ops.gpu.kernels.attention_tiles import (
    LOG2_E,
    NO_WINDOW,
    Softmax,
    add_sink,
    block_of_head,
    cache_rows,
    capped,
    fold,
    load_heads,
    normalized,
    product,
)
from powerinfer.ops.gpu.kernels.overlap import begin_filling, overlapping

__all__ = ["attend_many", "many_tokens_kernel"]

# Positions loaded at once. With 32, and 8 warps, registers spilled at a head width of 128 fall
# from 48 bytes to 0 on sm_90 and from 1,128 to 272 on sm_120; to be timed on a GPU.
_POSITIONS = 64

# Heads wider than this take half of the tokens and of the positions at once: tiles of 64 by 256
# would need more shared memory than a consumer GPU has.
_WIDE = 128


@overlapping
def many_tokens_kernel(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    positions,
    sequences,
    block_tables,
    tiles,
    sinks,
    out,
    q_stride,
    out_stride,
    table_width,
    block_size,
    window,
    scale,
    cap,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_Q8: tl.constexpr,
    IS_CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Query head `program_id(1)` of the tokens in tile `program_id(0)`, all of one sequence."""
    begin_filling()
    head = tl.program_id(1)
    kv_head = head // GROUP
    tile = tiles + tl.program_id(0) * TILE
    token = tl.load(tile + tl.arange(0, TILE)).to(tl.int64)
    is_token = token >= 0
    position = tl.load(positions + token, mask=is_token, other=-1)
    # The second half of a tile may be empty.
    sequence = tl.load(sequences + tl.maximum(tl.load(tile), 0)).to(tl.int64)
    last = tl.max(position, axis=0)
    nearest = tl.min(tl.where(is_token, position, last), axis=0)
    dim = tl.arange(0, BLOCK_D)
    mask = is_token[:, None] & (dim < HEAD_DIM)[None, :]
    source = q + token[:, None] * q_stride + head * HEAD_DIM + dim[None, :]
    high, low, largest = normalized(tl.load(source, mask=mask, other=0.0).to(tl.float32))
    sharpness = largest * (scale * LOG2_E)
    top = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, BLOCK_D), tl.float32)
    for begin in range(tl.maximum(nearest - window + 1, 0), last + 1, BLOCK):
        key_positions = begin + tl.arange(0, BLOCK)
        inside = key_positions <= last
        row = cache_rows(block_tables, sequence, table_width, key_positions, inside, block_size)
        row = row * NUM_KV_HEADS + kv_head
        key = load_heads(keys, key_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        value = load_heads(values, value_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        distance = position[:, None] - key_positions[None, :]
        scores = product(high, low, tl.trans(key)) * sharpness[:, None]
        if IS_CAPPED:
            scores = capped(scores, cap)
        allowed = (distance >= 0) & (distance < window)
        top, total, mixed = fold(scores, allowed, value, top, total, mixed)
    if HAS_SINKS:
        faded, total = add_sink(sinks + head, top, total)
        mixed *= faded[:, None]
    result = mixed / tl.where(is_token, total, 1.0)[:, None]
    target = out + token[:, None] * out_stride + head * HEAD_DIM + dim[None, :]
    tl.store(target, result, mask=mask)


def attend_many(q: Tensor, cache: DeviceKV, batch: DeviceBatch, softmax: Softmax) -> Tensor:
    """Compute attention by tiles of tokens.

    q, whose rows are contiguous, and the result are f32[num_tokens, num_heads * head_dim].
    """
    num_tokens, width = q.shape
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads = width // head_dim
    tiles, block_d = batch.tiles, block_of_head(head_dim)
    share = 1 if block_d <= _WIDE else 2
    scale, cap = softmax.factors
    out = torch.empty((num_tokens, width), dtype=torch.float32, device=q.device)
    many_tokens_kernel[(tiles.shape[0] * share, num_heads)](
        q,
        *cache.arrays,
        *batch.arrays,
        tiles,
        q if softmax.sinks is None else softmax.sinks,
        out,
        q.stride(0),
        width,
        batch.block_tables.shape[1],
        cache.block_size,
        NO_WINDOW if softmax.window is None else softmax.window,
        scale,
        cap,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        IS_Q8=cache.is_q8,
        IS_CAPPED=softmax.soft_cap is not None,
        HAS_SINKS=softmax.sinks is not None,
        TILE=QUERY_TILE // share,
        BLOCK_D=block_d,
        BLOCK=_POSITIONS // share,
        num_warps=4,
        num_stages=2,
    )
    return out
