"""int8 blocks: inputs of products with packed weights, rounded as the CPU rounds them, up to ties.

A block is 32 columns of a token: code[i] = round(x[i] / scale) with scale = max |x| / 127, to
nearest even. Bound by the launch. A block with a NaN or an infinity gets the scale NaN, and every
product with it is NaN.

Layout: i32[tokens, 11, width]; zeros fill the tokens up to a power of two, so that none is checked,
and the blocks up to whole tiles. Plane q < 8 holds the
codes of columns 4 q to 4 q + 3 of each block, the first in the lowest byte. The others hold f32:
the scales, the sums of a block's codes and those of its first 16 codes.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.formats import SCALE_COLUMNS
from powerinfer.ops.gpu.kernels import IS_INTERPRETED
from powerinfer.ops.gpu.kernels.overlap import begin_small, overlapping

__all__ = ["keep_blocks", "new_blocks", "quantized", "store_rounded", "tile_blocks"]

# Four blocks in each thread of a warp.
_MOST_BLOCKS = 128

# Below this magnitude 127 / max overflows f32; such blocks count as zero, as on the CPU.
SMALLEST = tl.constexpr(2.0**-120)
# Added to f32 below 2^22, it leaves the nearest integer in the lowest bits.
ROUNDER = tl.constexpr(12582912.0)
_BLOCKS = 128 if IS_INTERPRETED else 8

# Attribute of a tensor: its version when its blocks were made, and those.
_KEPT = "powerinfer_blocks"


@overlapping
def quantize_kernel(
    x, center, blocks, num_tokens, columns, width, HAS_CENTER: tl.constexpr, BLOCKS: tl.constexpr
):
    """One program for BLOCKS blocks of a token."""
    begin_small()
    token = tl.program_id(0)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    quads, lanes = tl.arange(0, 8)[None, :, None], tl.arange(0, 4)[None, None, :]
    places = block[:, None, None] * 32 + quads * 4 + lanes
    is_column = places < tl.where(token < num_tokens, columns, 0)
    numbers = tl.load(x + token * columns + places, mask=is_column, other=0.0)
    if HAS_CENTER:
        numbers = numbers - tl.load(center + places, mask=is_column, other=0.0)
    store_rounded(numbers, blocks + token * (11 * width), block, width)


@triton.jit
def store_rounded(numbers, blocks, block, width):
    """Round f32[n, 8, 4], the blocks `block` of a token, and store them to its planes."""
    quads, lanes = tl.arange(0, 8), tl.arange(0, 4)[None, None, :]
    sizes = tl.abs(numbers)
    is_damaged = tl.max(tl.max((~(sizes < float("inf"))).to(tl.int32), axis=2), axis=1) != 0
    largest = tl.max(tl.max(tl.where(sizes < float("inf"), sizes, 0.0), axis=2), axis=1)
    is_used = (largest >= SMALLEST) & ~is_damaged
    factors = tl.where(is_used, tl.div_rn(127.0, tl.where(is_used, largest, 1.0)), 0.0)
    kept = tl.where(is_used[:, None, None], numbers, 0.0)
    rounded = kept * factors[:, None, None] + ROUNDER
    codes = rounded.to(tl.int32, bitcast=True)
    words = tl.sum((codes & 255) << (8 * lanes), axis=2)
    sums = tl.sum(rounded - ROUNDER, axis=2)
    first = tl.sum(tl.where(quads[None, :] < 4, sums, 0.0), axis=1)
    scales = tl.where(is_used, tl.div_rn(largest, 127.0), 0.0)
    scales = tl.where(is_damaged, float("nan"), scales)
    inside = block < width
    at = blocks + block
    tl.store(at[:, None] + quads[None, :] * width, words, mask=inside[:, None])
    tl.store(at + 8 * width, scales.to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 9 * width, tl.sum(sums, axis=1).to(tl.int32, bitcast=True), mask=inside)
    tl.store(at + 10 * width, first.to(tl.int32, bitcast=True), mask=inside)


def tile_blocks(columns: int) -> int:
    """Blocks of a row that kernels multiply at a time: a power of two of at least four."""
    blocks = triton.cdiv(columns, SCALE_COLUMNS)
    return int(min(_MOST_BLOCKS, max(4, triton.next_power_of_2(blocks))))


def new_blocks(x: Tensor) -> Tensor:
    """Allocate room for the blocks of f32[num_tokens, columns]: i32[tokens, 11, width]."""
    num_tokens, columns = x.shape
    tile = tile_blocks(columns)
    width = triton.cdiv(columns, tile * SCALE_COLUMNS) * tile
    shape = (int(triton.next_power_of_2(num_tokens)), 11, width)
    return torch.empty(shape, dtype=torch.int32, device=x.device)


def keep_blocks(x: Tensor, blocks: Tensor) -> None:
    """Let `quantized` find the blocks of x that the kernel which wrote x has made as well."""
    vars(x)[_KEPT] = x._version, blocks


def quantized(x: Tensor, center: Tensor | None = None) -> Tensor:
    """Round inputs to int8 blocks, in the layout above.

    Args:
        x: f32[num_tokens, columns], contiguous.
        center: f32[columns], subtracted from every token, or None.
    """
    kept: tuple[int, Tensor] | None = vars(x).get(_KEPT)
    if center is None and kept is not None and kept[0] == x._version:
        return kept[1]
    num_tokens, columns = x.shape
    blocks = new_blocks(x)
    tokens, _, width = blocks.shape
    quantize_kernel[(tokens, triton.cdiv(width, _BLOCKS))](
        x,
        x if center is None else center,
        blocks,
        num_tokens,
        columns,
        width,
        HAS_CENTER=center is not None,
        BLOCKS=_BLOCKS,
        num_warps=2,
    )
    return blocks
