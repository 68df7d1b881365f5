"""Causal grouped-query attention of few tokens over the paged cache, split over the positions.

out[t, h] = sum over p of softmax_p(q[t, h] . k[p] * scale) v[p], for the positions p that t sees;
with soft caps and sinks as `powerinfer.ops.protocol.Ops.attention` says.
A program per token, key head and split of the positions ("Flash-Decoding"); the query heads of a
group share what it loads; a second kernel merges the splits in their order. The grid depends on
sizes only, lengths are read on the device: splits beyond a length end at once. Bound by memory:
2 * head_dim * element bytes per position and key head.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.cache import DeviceBatch, DeviceKV
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
from powerinfer.ops.gpu.kernels.blocks import keep_blocks, new_blocks, store_rounded
from powerinfer.ops.gpu.kernels.overlap import begin_small, overlapping

__all__ = ["attend_few", "few_tokens_kernel", "merge_splits_kernel"]

# Positions loaded at once. 32 rows of 128 f16 keys and values are 16 KiB per program; with four
# programs on a multiprocessor that is more than the memory's latency needs in flight.
_POSITIONS = 32

# Programs that fill a large GPU several times over; more splits only add work to the merge.
_ENOUGH_PROGRAMS = 512
_MAX_SPLITS = 64


@triton.jit
def _split(position, window, num_splits, BLOCK: tl.constexpr):
    """First position a token sees, and positions of one split: whole blocks, evenly spread."""
    start = tl.maximum(position - window + 1, 0)
    share = (position + num_splits - start) // num_splits
    return start, (share + BLOCK - 1) // BLOCK * BLOCK


@overlapping
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
    cap,
    num_splits,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    IS_Q8: tl.constexpr,
    IS_CAPPED: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One split of one key head for token `program_id(0)`: unscaled sums and their maxima."""
    begin_small()
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
    high, low, largest = normalized(tl.load(source, mask=mask, other=0.0).to(tl.float32))
    sharpness = largest * (scale * LOG2_E)
    top = tl.full((BLOCK_GROUP,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_GROUP,), tl.float32)
    mixed = tl.zeros((BLOCK_GROUP, BLOCK_D), tl.float32)
    for begin in range(first, last + 1, BLOCK):
        key_positions = begin + tl.arange(0, BLOCK)
        inside = key_positions <= last
        row = cache_rows(block_tables, sequence, table_width, key_positions, inside, block_size)
        row = row * NUM_KV_HEADS + kv_head
        key = load_heads(keys, key_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        value = load_heads(values, value_scales, row, inside, dim, HEAD_DIM, IS_Q8)
        scores = product(high, low, tl.trans(key)) * sharpness[:, None]
        if IS_CAPPED:
            scores = capped(scores, cap)
        top, total, mixed = fold(scores, inside[None, :], value, top, total, mixed)
    part = (token * (NUM_KV_HEADS * GROUP) + head) * num_splits + split
    tl.store(top_parts + part, top, mask=is_member)
    tl.store(total_parts + part, total, mask=is_member)
    tl.store(mixed_parts + part[:, None] * HEAD_DIM + dim[None, :], mixed, mask=mask)


@overlapping
def merge_splits_kernel(
    mixed_parts,
    top_parts,
    total_parts,
    positions,
    sinks,
    out,
    blocks,
    num_heads,
    window,
    num_splits,
    width,
    HEAD_DIM: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_BLOCKS: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Merge the splits of token `program_id(0)`, query head `program_id(1)`."""
    begin_small()
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
    largest = tl.max(top, axis=0)
    weights = tl.where(is_used, tl.exp2(top - largest), 0.0)
    result = tl.sum(mixed * weights[:, None], axis=0)
    whole = tl.sum(total * weights, axis=0)
    if HAS_SINKS:
        faded, whole = add_sink(sinks + tl.program_id(1), largest, whole)
        result *= faded
    result /= whole
    tl.store(out + row * HEAD_DIM + dim, result, mask=dim < HEAD_DIM)
    if HAS_BLOCKS:
        numbers = tl.reshape(result, [BLOCK_D // 32, 8, 4])
        block = tl.program_id(1) * (HEAD_DIM // 32) + tl.arange(0, BLOCK_D // 32)
        store_rounded(numbers, blocks + token * (11 * width), block, width)


def attend_few(
    q: Tensor, cache: DeviceKV, batch: DeviceBatch, softmax: Softmax, *, is_rounded: bool = False
) -> Tensor:
    """Attention whose time does not depend on the host: f32[num_tokens, num_heads * head_dim].

    `q` is f32[num_tokens, num_heads * head_dim], rows contiguous. With `is_rounded` the int8 blocks
    of the result are made too, if heads fill all of them, and `quantized` finds them.
    """
    num_tokens, width = q.shape
    head_dim, num_kv_heads = cache.head_dim, cache.num_kv_heads
    num_heads = width // head_dim
    reach = NO_WINDOW if softmax.window is None else softmax.window
    scale, cap = softmax.factors
    capacity = min(batch.block_tables.shape[1] * cache.block_size, reach)
    splits = _num_splits(num_tokens * num_kv_heads, capacity)
    block_d, group = block_of_head(head_dim), num_heads // num_kv_heads
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
        reach,
        scale,
        cap,
        splits,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        IS_Q8=cache.is_q8,
        IS_CAPPED=softmax.soft_cap is not None,
        BLOCK_GROUP=block_group,
        BLOCK_D=block_d,
        BLOCK=_POSITIONS,
        num_warps=4 if block_group <= 32 else 8,
        # One more tile is on its way while one is multiplied.
        num_stages=3,
    )
    return _merged(mixed, top, total, batch, softmax, is_rounded=is_rounded)


def _merged(
    mixed: Tensor,
    top: Tensor,
    total: Tensor,
    batch: DeviceBatch,
    softmax: Softmax,
    *,
    is_rounded: bool,
) -> Tensor:
    """Merge splits f32[num_tokens, num_heads, splits, head_dim], and round the result if asked."""
    num_tokens, num_heads, splits, head_dim = mixed.shape
    block_d = block_of_head(head_dim)
    out = torch.empty((num_tokens, num_heads * head_dim), dtype=torch.float32, device=mixed.device)
    # Each program rounds a head: heads must be whole blocks, and there may be no padding.
    fills_blocks = head_dim == block_d and head_dim % 32 == 0
    blocks = new_blocks(out) if is_rounded and fills_blocks else None
    if blocks is not None and blocks.numel() * 32 != out.numel() * 11:
        blocks = None
    if blocks is not None:
        keep_blocks(out, blocks)
    merge_splits_kernel[(num_tokens, num_heads)](
        mixed,
        top,
        total,
        batch.positions,
        top if softmax.sinks is None else softmax.sinks,
        out,
        out if blocks is None else blocks,
        num_heads,
        NO_WINDOW if softmax.window is None else softmax.window,
        splits,
        0 if blocks is None else blocks.shape[2],
        HEAD_DIM=head_dim,
        HAS_SINKS=softmax.sinks is not None,
        HAS_BLOCKS=blocks is not None,
        BLOCK_SPLITS=int(triton.next_power_of_2(splits)),
        BLOCK_D=block_d,
        BLOCK=_POSITIONS,
        num_warps=4,
    )
    return out


def _num_splits(programs: int, capacity: int) -> int:
    """Splits that fill the device, never more than there are blocks of positions."""
    blocks = -(-capacity // _POSITIONS)
    return max(1, min(_MAX_SPLITS, blocks, _ENOUGH_PROGRAMS // programs))
