"""Work around products with many tokens: packed rows to f16, tokens to f16, values to be counted.

Each is one launch for what would be five to ten of torch, which take Python longer than the GPU.
Bound by memory: what is read and written, once; tokens are read twice.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.formats import num_blocks
from powerinfer.ops.gpu.kernels import IS_INTERPRETED
from powerinfer.ops.gpu.kernels.matvec import NUM_WARPS, power_of_two, row_arguments
from powerinfer.ops.gpu.kernels.overlap import begin_filling, begin_small, overlapping
from powerinfer.ops.gpu.kernels.rows import load_quads
from powerinfer.ops.gpu.matrix import DeviceMatrix

__all__ = ["decode_rows", "decoded", "halved", "select_values"]

_ROWS = 64 if IS_INTERPRETED else 4
_MOST_COLUMNS = 1024
_MOST_BLOCKS = 32
_VALUES_TILE = {"TOKENS": 32, "BLOCK": 1024 if IS_INTERPRETED else 64}


# One compiled kernel for panels of any size, below for prompts of any length.
@overlapping
def decode_kernel(
    values,
    scales,
    panel,
    first,
    num_rows,
    columns,
    BITS: tl.constexpr,
    CENTRE: tl.constexpr,
    SCALING: tl.constexpr,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """One program for ROWS rows and BLOCKS blocks of columns."""
    begin_filling()
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = rows < num_rows
    places = (tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS))[None, :]
    bytes_ = tl.arange(0, 4)[None, None, :]
    # Four columns each.
    FIELDS: tl.constexpr = 2 if BITS == 5 or BITS == 6 else 8 // BITS
    for plane in tl.static_range(8 // FIELDS):
        quads, step, base = load_quads(
            values, scales, rows + first, is_row, places, plane, BITS, CENTRE, SCALING, SIZE
        )
        for field in tl.static_range(FIELDS):
            found = ((quads[field][:, :, None] >> (8 * bytes_)) & 255).to(tl.float32)
            numbers = found * step[:, :, None] - base[:, :, None]
            at = places[:, :, None] * 32 + 4 * (plane * FIELDS + field) + bytes_
            inside = is_row[:, None, None] & (at < columns)
            to = panel + rows[:, None, None] * columns + at
            tl.store(to, numbers.to(tl.float16), mask=inside)


@overlapping
def halve_kernel(x, y, sizes, columns, largest, BLOCK: tl.constexpr):
    """y[t, :] = x[t, :] / sizes[t], whose largest magnitude is `largest`. A program for a token."""
    begin_small()
    token = tl.program_id(0)
    row = token.to(tl.int64) * columns
    tops = tl.zeros([BLOCK], tl.float32)
    for block in range(tl.cdiv(columns, BLOCK)):
        places = block * BLOCK + tl.arange(0, BLOCK)
        found = tl.load(x + row + places, mask=places < columns, other=0.0)
        tops = tl.maximum(tops, tl.abs(found))
    size = tl.max(tops, axis=0) / largest
    size = tl.where(size > 0.0, size, 1.0)
    tl.store(sizes + token, size)
    for block in range(tl.cdiv(columns, BLOCK)):
        places = block * BLOCK + tl.arange(0, BLOCK)
        found = tl.load(x + row + places, mask=places < columns, other=0.0)
        tl.store(y + row + places, (found / size).to(tl.float16), mask=places < columns)


@overlapping
def select_kernel(
    values,
    neurons,
    mask,
    counters,
    num_tokens,
    num_slots,
    mask_stride,
    HAS_TABLE: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_COUNTERS: tl.constexpr,
    TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Clears values that are not selected and counts the others. A program for BLOCK slots."""
    begin_small()
    slots = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = slots < num_slots
    places = slots
    if HAS_TABLE:
        places = tl.load(neurons + slots, mask=inside, other=-1)
    is_used = inside & (places >= 0)
    active = tl.zeros([BLOCK], tl.int32)
    pairs = tl.zeros([BLOCK], tl.int32)
    for first in range(0, num_tokens, TOKENS):
        tokens = (first + tl.arange(0, TOKENS)).to(tl.int64)
        is_token = tokens < num_tokens
        is_selected = is_token[:, None] & is_used[None, :]
        if HAS_MASK:
            at_mask = mask + tokens[:, None] * mask_stride + places[None, :]
            is_selected = is_selected & (tl.load(at_mask, mask=is_selected, other=0) != 0)
        at = values + tokens[:, None] * num_slots + slots[None, :]
        # Selected, not multiplied: values of other neurons may be infinite.
        found = tl.load(at, mask=is_selected, other=0.0)
        tl.store(at, found, mask=is_token[:, None] & inside[None, :])
        active += tl.sum((found != 0.0).to(tl.int32), axis=0)
        pairs += tl.sum(is_selected.to(tl.int32), axis=0)
    if HAS_COUNTERS:
        # Sums of whole numbers do not depend on their order.
        tl.atomic_add(counters, tl.sum(active, axis=0).to(tl.int64))
        tl.atomic_add(counters + 1, tl.sum(pairs, axis=0).to(tl.int64))
        tl.atomic_add(counters + 2, tl.sum((pairs > 0).to(tl.int32), axis=0).to(tl.int64))


def decode_rows(matrix: DeviceMatrix, first: int, panel: Tensor) -> None:
    """Decode rows of a packed matrix, from `first` on, to f16[num_rows, matrix.columns]."""
    num_rows, columns = panel.shape
    count = num_blocks(columns)
    blocks = power_of_two(count, _MOST_BLOCKS)
    decode_kernel[(triton.cdiv(num_rows, _ROWS), triton.cdiv(count, blocks))](
        matrix.values,
        matrix.scales,
        panel,
        first,
        num_rows,
        columns,
        **row_arguments(matrix),
        ROWS=_ROWS,
        BLOCKS=blocks,
        num_warps=NUM_WARPS,
    )


def decoded(matrix: DeviceMatrix) -> Tensor:
    """Decode a whole matrix: new f16 of packed formats; of floats a view in their type."""
    if not matrix.bits:
        return matrix.values
    panel = torch.empty((matrix.rows, matrix.columns), dtype=torch.float16, device=matrix.device)
    decode_rows(matrix, 0, panel)
    return panel


def halved(x: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Scale rows of contiguous f32[n, columns] to f16 of one largest magnitude.

    Returns:
        f16[n, columns], and the factors of results, f32[n, 1].
    """
    num_rows, columns = x.shape
    y = torch.empty((num_rows, columns), dtype=torch.float16, device=x.device)
    sizes = torch.empty((num_rows, 1), dtype=torch.float32, device=x.device)
    block = power_of_two(columns, _MOST_COLUMNS)
    halve_kernel[(num_rows,)](x, y, sizes, columns, largest, BLOCK=block, num_warps=NUM_WARPS)
    return y, sizes


def select_values(
    values: Tensor, neurons: Tensor | None, mask: Tensor | None, counters: Tensor | None
) -> None:
    """Clear the values of neurons that are not selected, and count the others.

    Args:
        values: f32[num_tokens, slots], contiguous, changed in place.
        neurons: i32[slots], column of the mask for each slot, -1 for free slots; None: in order.
        mask: u8[num_tokens, neurons], 1 for selected ones; rows may lie apart. None for all.
        counters: i64[3], added to: values other than zero, selected pairs of token and slot, and
            slots that any token selected. None: not counted.
    """
    num_tokens, num_slots = values.shape
    select_kernel[(triton.cdiv(num_slots, _VALUES_TILE["BLOCK"]),)](
        values,
        values if neurons is None else neurons,
        values if mask is None else mask,
        values if counters is None else counters,
        num_tokens,
        num_slots,
        0 if mask is None else mask.stride(0),
        HAS_TABLE=neurons is not None,
        HAS_MASK=mask is not None,
        HAS_COUNTERS=counters is not None,
        **_VALUES_TILE,
        num_warps=NUM_WARPS,
    )
