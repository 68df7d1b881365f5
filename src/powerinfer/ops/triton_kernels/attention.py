"""Causal grouped-query attention over the paged cache, for few tokens and for many.

out[t, h] = sum over p of softmax_p(q[t, h] . k[p] * scale) v[p], for the positions p that t sees.

Few tokens: a program per token, key head and split of the positions ("Flash-Decoding"); the query
heads of a group share what it loads; a second kernel merges the splits in their order. The grid
depends on sizes only, lengths are read on the device: splits beyond a length end at once. Bound by
memory: 2 * head_dim * element bytes per position and key head.

Many tokens: a program per query head and tile of tokens of one sequence (FlashAttention, arXiv
2205.14135). Bound by the products.

Products run on f16 tensor cores with f32 sums. Keys are f16 as stored (Q8_0 is rounded to f16);
queries and probabilities are split in two halves each, which keeps 22 bits of them.
"""

from typing import Any

import torch
import triton
import triton.language as tl

__all__ = [
    "QUERY_TILE",
    "attend_few",
    "attend_many",
    "few_tokens_kernel",
    "many_tokens_kernel",
    "merge_splits_kernel",
]

QUERY_TILE = 64
"""Tokens of one tile of `attend_many`: what one warp group multiplies at once."""

# Positions loaded at once. 32 rows of 128 f16 keys and values are 16 KiB per program; with four
# programs on a multiprocessor that is more than the memory's latency needs in flight.
_POSITIONS_FEW = 32
_POSITIONS_MANY = 64

# Programs that fill a large GPU several times over; more splits only add work to the merge.
_ENOUGH_PROGRAMS = 512
_MAX_SPLITS = 64

# A distance that no position reaches: no window.
_NO_WINDOW = 1 << 30

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _halves(x):
    """Two f16 numbers whose sum is x to 22 bits."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def _product(high, low, y):
    """(high + low) @ y with f32 sums."""
    return tl.dot(high, y, out_dtype=tl.float32) + tl.dot(low, y, out_dtype=tl.float32)


@triton.jit
def _normalized(q):
    """Rows of q over their largest magnitudes, as two halves, and those magnitudes."""
    largest = tl.max(tl.abs(q), axis=1)
    largest = tl.where(largest > 0, largest, 1.0)
    high, low = _halves(q / largest[:, None])
    return high, low, largest


@triton.jit
def _rows(block_tables, sequence, table_width, position, inside, block_size):
    """Row of the cache, counted in positions, that holds each position."""
    entry = block_tables + sequence * table_width + position // block_size
    block = tl.load(entry, mask=inside, other=0).to(tl.int64)
    return block * block_size + position % block_size


@triton.jit
def _load(cache, scales, row, inside, dim, HEAD_DIM: tl.constexpr, IS_Q8: tl.constexpr):
    """Rows of one head of the cache: f16[positions, BLOCK_D], zeros outside."""
    mask = inside[:, None] & (dim < HEAD_DIM)[None, :]
    stored = tl.load(cache + row[:, None] * HEAD_DIM + dim[None, :], mask=mask, other=0)
    if IS_Q8:
        block = row[:, None] * (HEAD_DIM // 32) + dim[None, :] // 32
        d = tl.load(scales + block, mask=mask, other=0).to(tl.float32)
        stored = (stored.to(tl.float32) * d).to(tl.float16)
    return stored


@triton.jit
def _fold(scores, allowed, value, top, total, mixed):
    """Fold positions with these scores (base 2) and values into running softmax sums."""
    scores = tl.where(allowed, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    # A row that has seen nothing yet must not meet infinity minus infinity.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    faded = tl.exp2(top - base)
    weights = tl.exp2(scores - base[:, None])
    high, low = _halves(weights)
    mixed = mixed * faded[:, None] + _product(high, low, value)
    return new_top, total * faded + tl.sum(weights, axis=1), mixed


@triton.jit
def _split(position, window, num_splits, BLOCK: tl.constexpr):
    """First position a token sees, and positions of one split: whole blocks, evenly spread."""
    start = tl.maximum(position - window + 1, 0)
    share = (position + num_splits - start) // num_splits
    return start, (share + BLOCK - 1) // BLOCK * BLOCK


@triton.jit
def few_tokens_kernel(
    q,
    keys,
    values,
    key_scales,
    value_scales,
    positions,
    sequences,
    block_tables,
    mixed_parts,
    top_parts,
    total_parts,
    q_stride,
    table_width,
    block_size,
    window,
    scale,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_Q8: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One split of one key head for token `program_id(0)`: unscaled sums and their maxima."""
    token = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    position = tl.load(positions + token)
    start, size = _split(position, window, num_splits, BLOCK)
    first = start + split * size
    if first > position:
        return
    last = tl.minimum(first + size - 1, position)
    sequence = tl.load(sequences + token).to(tl.int64)
    member, dim = tl.arange(0, BLOCK_GROUP), tl.arange(0, BLOCK_D)
    is_member = member < GROUP
    head = kv_head * GROUP + member
    mask = is_member[:, None] & (dim < HEAD_DIM)[None, :]
    source = q + token * q_stride + head[:, None] * HEAD_DIM + dim[None, :]
    high, low, largest = _normalized(tl.load(source, mask=mask, other=0.0).to(tl.float32))
    sharpness = largest * (scale * _LOG2_E)
    top = tl.full((BLOCK_GROUP,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_GROUP,), tl.float32)
    mixed = tl.zeros((BLOCK_GROUP, BLOCK_D), tl.float32)
    for begin in range(first, last + 1, BLOCK):
        seen = begin + tl.arange(0, BLOCK)
        inside = seen <= last
        row = _rows(block_tables, sequence, table_width, seen, inside, block_size)
        row = row * NUM_KV_HEADS + kv_head
        key = _load(keys, key_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        value = _load(values, value_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        scores = _product(high, low, tl.trans(key)) * sharpness[:, None]
        top, total, mixed = _fold(scores, inside[None, :], value, top, total, mixed)
    part = (token * (NUM_KV_HEADS * GROUP) + head) * num_splits + split
    tl.store(top_parts + part, top, mask=is_member)
    tl.store(total_parts + part, total, mask=is_member)
    tl.store(mixed_parts + part[:, None] * HEAD_DIM + dim[None, :], mixed, mask=mask)


@triton.jit
def merge_splits_kernel(
    mixed_parts,
    top_parts,
    total_parts,
    positions,
    out,
    num_heads,
    window,
    num_splits,
    HEAD_DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Merge the splits of token `program_id(0)`, query head `program_id(1)`."""
    token = tl.program_id(0).to(tl.int64)
    row = token * num_heads + tl.program_id(1)
    position = tl.load(positions + token)
    start, size = _split(position, window, num_splits, BLOCK)
    split, dim = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_D)
    is_used = (split < num_splits) & (start + split * size <= position)
    part = row * num_splits + split
    top = tl.load(top_parts + part, mask=is_used, other=float("-inf"))
    total = tl.load(total_parts + part, mask=is_used, other=0.0)
    mask = is_used[:, None] & (dim < HEAD_DIM)[None, :]
    source = mixed_parts + part[:, None] * HEAD_DIM + dim[None, :]
    mixed = tl.load(source, mask=mask, other=0.0)
    weights = tl.where(is_used, tl.exp2(top - tl.max(top, axis=0)), 0.0)
    result = tl.sum(mixed * weights[:, None], axis=0) / tl.sum(total * weights, axis=0)
    tl.store(out + row * HEAD_DIM + dim, result, mask=dim < HEAD_DIM)


@triton.jit
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
    out,
    q_stride,
    out_stride,
    table_width,
    block_size,
    window,
    scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_Q8: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Query head `program_id(1)` of the tokens in tile `program_id(0)`, all of one sequence."""
    head = tl.program_id(1)
    kv_head = head // GROUP
    tile = tiles + tl.program_id(0) * TILE
    token = tl.load(tile + tl.arange(0, TILE)).to(tl.int64)
    is_token = token >= 0
    position = tl.load(positions + token, mask=is_token, other=-1)
    sequence = tl.load(sequences + tl.load(tile)).to(tl.int64)
    last = tl.max(position, axis=0)
    nearest = tl.min(tl.where(is_token, position, last), axis=0)
    dim = tl.arange(0, BLOCK_D)
    mask = is_token[:, None] & (dim < HEAD_DIM)[None, :]
    source = q + token[:, None] * q_stride + head * HEAD_DIM + dim[None, :]
    high, low, largest = _normalized(tl.load(source, mask=mask, other=0.0).to(tl.float32))
    sharpness = largest * (scale * _LOG2_E)
    top = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    mixed = tl.zeros((TILE, BLOCK_D), tl.float32)
    for begin in range(tl.maximum(nearest - window + 1, 0), last + 1, BLOCK):
        seen = begin + tl.arange(0, BLOCK)
        inside = seen <= last
        row = _rows(block_tables, sequence, table_width, seen, inside, block_size)
        row = row * NUM_KV_HEADS + kv_head
        key = _load(keys, key_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        value = _load(values, value_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        distance = position[:, None] - seen[None, :]
        scores = _product(high, low, tl.trans(key)) * sharpness[:, None]
        allowed = (distance >= 0) & (distance < window)
        top, total, mixed = _fold(scores, allowed, value, top, total, mixed)
    result = mixed / tl.where(is_token, total, 1.0)[:, None]
    target = out + token[:, None] * out_stride + head * HEAD_DIM + dim[None, :]
    tl.store(target, result, mask=mask)


def attend_few(q: Any, cache: Any, batch: Any, scale: float, window: int | None) -> Any:
    """Attention whose time does not depend on the host: f32[num_tokens, num_heads * head_dim].

    Args:
        q: f32[num_tokens, num_heads * head_dim], rows contiguous.
        cache: a `powerinfer.ops.torch_gpu_attention.DeviceKV`.
        batch: a `powerinfer.ops.torch_gpu_batch.DeviceBatch`.
        scale: of the products of queries and keys.
        window: positions a token sees, or None for all.
    """
    num_tokens, width = q.shape
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads, seen = width // head_dim, _NO_WINDOW if window is None else window
    capacity = min(batch.block_tables.shape[1] * cache.block_size, seen)
    splits = _num_splits(num_tokens * num_kv_heads, capacity)
    block_d, group = _block_of_head(head_dim), num_heads // num_kv_heads
    block_group = max(16, int(triton.next_power_of_2(group)))
    parts = (num_tokens, num_heads, splits)
    mixed = torch.empty((*parts, head_dim), dtype=torch.float32, device=q.device)
    top = torch.empty(parts, dtype=torch.float32, device=q.device)
    total = torch.empty(parts, dtype=torch.float32, device=q.device)
    few_tokens_kernel[(num_tokens, num_kv_heads, splits)](
        q,
        *cache.arrays,
        *batch.arrays,
        mixed,
        top,
        total,
        q.stride(0),
        batch.block_tables.shape[1],
        cache.block_size,
        seen,
        scale,
        splits,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        IS_Q8=cache.is_q8,
        BLOCK_GROUP=block_group,
        BLOCK_D=block_d,
        BLOCK=_POSITIONS_FEW,
        num_warps=4 if block_group <= 32 else 8,
        # One more tile is on its way while one is multiplied.
        num_stages=3,
    )
    out = torch.empty((num_tokens, width), dtype=torch.float32, device=q.device)
    merge_splits_kernel[(num_tokens, num_heads)](
        mixed,
        top,
        total,
        batch.positions,
        out,
        num_heads,
        seen,
        splits,
        HEAD_DIM=head_dim,
        BLOCK_SPLITS=int(triton.next_power_of_2(splits)),
        BLOCK_D=block_d,
        BLOCK=_POSITIONS_FEW,
        num_warps=4,
    )
    return out


def attend_many(q: Any, cache: Any, batch: Any, scale: float, window: int | None) -> Any:
    """Attention by tiles of tokens: f32[num_tokens, num_heads * head_dim].

    Args:
        q: f32[num_tokens, num_heads * head_dim], rows contiguous.
        cache: a `powerinfer.ops.torch_gpu_attention.DeviceKV`.
        batch: a `powerinfer.ops.torch_gpu_batch.DeviceBatch`; its tiles are asked for.
        scale: of the products of queries and keys.
        window: positions a token sees, or None for all.
    """
    num_tokens, width = q.shape
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads = width // head_dim
    tiles = batch.tiles
    out = torch.empty((num_tokens, width), dtype=torch.float32, device=q.device)
    many_tokens_kernel[(tiles.shape[0], num_heads)](
        q,
        *cache.arrays,
        *batch.arrays,
        tiles,
        out,
        q.stride(0),
        width,
        batch.block_tables.shape[1],
        cache.block_size,
        _NO_WINDOW if window is None else window,
        scale,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        IS_Q8=cache.is_q8,
        TILE=QUERY_TILE,
        BLOCK_D=_block_of_head(head_dim),
        BLOCK=_POSITIONS_MANY,
        num_warps=4,
        num_stages=2,
    )
    return out


def _num_splits(programs: int, capacity: int) -> int:
    """Splits that fill the device, never more than there are blocks of positions."""
    blocks = -(-capacity // _POSITIONS_FEW)
    return max(1, min(_MAX_SPLITS, blocks, _ENOUGH_PROGRAMS // programs))


def _block_of_head(head_dim: int) -> int:
    """Width of a head in registers: tensor cores multiply 16 columns at once."""
    return max(16, int(triton.next_power_of_2(head_dim)))
