"""Encoded rows of a file, sent as they are, to words of codes and scales of packed matrices.

One launch for what takes torch some 25, which Python queues no faster than a bus sends the rows.
Bound by memory. `powerinfer.ops.gpu.formats` describes the layout.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from powerinfer.ops.gpu.formats import device_format, num_blocks
from powerinfer.ops.gpu.kernels import IS_INTERPRETED
from powerinfer.quant import get_format

__all__ = ["PACKED_AT_ONCE", "pack_rows"]

PACKED_AT_ONCE = ("q8_0", "q4_0", "q4_k")
"""Formats that the kernel knows."""

_ROWS = 64 if IS_INTERPRETED else 4
_BLOCKS = 32


@triton.jit
def load_half(at, mask):
    """Two bytes as i16: blocks lie at any even address, or odd in rows of odd length."""
    low = tl.load(at, mask=mask, other=0).to(tl.int32)
    return (low | tl.load(at + 1, mask=mask, other=0).to(tl.int32) << 8).to(tl.int16)


# One compiled kernel for pieces of any number of rows.
@triton.jit(do_not_specialize=["num_rows"])
def pack_kernel(
    encoded,
    values,
    scales,
    num_rows,
    row_bytes,
    num_encoded,
    num_held,
    num_halves,
    KIND: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """A program for ROWS rows and BLOCKS of their blocks of 32 columns."""
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    blocks = (tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS))[None, :]
    is_row = rows < num_rows
    is_held, is_encoded = is_row & (blocks < num_held), is_row & (blocks < num_encoded)
    row, halves = encoded + rows * row_bytes, scales + rows * num_halves
    if KIND == "q4_k":
        head, group = row + blocks // 8 * BLOCK_BYTES, blocks % 8
        codes, shift = head + 16 + group // 2 * 32, group % 2 * 4
        at = head + 4 + group % 4
        first = tl.load(at, mask=is_encoded, other=0).to(tl.int32)
        second = tl.load(at + 4, mask=is_encoded, other=0).to(tl.int32)
        third = tl.load(at + 8, mask=is_encoded, other=0).to(tl.int32)
        scale = tl.where(group < 4, first & 63, third & 15 | first >> 6 << 4)
        minimum = tl.where(group < 4, second & 63, third >> 4 | second >> 6 << 4)
        half = (scale | minimum << 8).to(tl.int16)
        # Here `blocks` count the scales of superblocks, two of each.
        unit = load_half(
            row + blocks // 2 * BLOCK_BYTES + blocks % 2 * 2, is_row & (blocks < num_encoded // 4)
        )
        is_unit = is_row & (blocks < num_halves - num_held)
        tl.store(halves + num_held + blocks, unit, mask=is_unit)
    else:
        codes, shift = row + blocks * BLOCK_BYTES + 2, 0
        half = load_half(row + blocks * BLOCK_BYTES, is_encoded)
    tl.store(halves + blocks, half, mask=is_held)
    for word in tl.static_range(BITS):
        packed = tl.zeros([ROWS, BLOCKS], tl.int32)
        for part in tl.static_range(8 // BITS):
            for byte in tl.static_range(4):
                column = 4 * (word * (8 // BITS) + part) + byte
                if KIND == "q8_0":
                    code = tl.load(codes + column, mask=is_encoded, other=0).to(tl.int32) ^ 128
                elif KIND == "q4_0":
                    code = tl.load(codes + column % 16, mask=is_encoded, other=0).to(tl.int32)
                    code = code >> column // 16 * 4 & 15
                else:
                    code = tl.load(codes + column, mask=is_encoded, other=0).to(tl.int32)
                    code = code >> shift & 15
                packed |= code << 8 * byte + BITS * part
        to = values + rows * (BITS * num_held) + word * num_held + blocks
        tl.store(to, tl.where(is_encoded, packed, 0), mask=is_held)


def pack_rows(encoded: Tensor, format_name: str, values: Tensor, scales: Tensor) -> None:
    """Unpack rows into those of a matrix.

    Args:
        encoded: u8[rows, row_bytes] on the device.
        format_name: one of `PACKED_AT_ONCE`.
        values: i32[rows, words], contiguous, written to.
        scales: f16[rows, n], contiguous, written to.
    """
    num_rows, row_bytes = encoded.shape
    form = get_format(format_name)
    columns = row_bytes // form.block_bytes * form.block_size
    held = num_blocks(columns)
    pack_kernel[(triton.cdiv(num_rows, _ROWS), triton.cdiv(held, _BLOCKS))](
        encoded,
        values,
        scales.view(torch.int16),
        num_rows,
        row_bytes,
        columns // 32,
        held,
        scales.shape[1],
        KIND=format_name,
        BITS=device_format(format_name).bits,
        BLOCK_BYTES=form.block_bytes,
        ROWS=_ROWS,
        BLOCKS=_BLOCKS,
        num_warps=4,
    )
