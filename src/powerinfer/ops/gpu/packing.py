"""Takes the blocks of packed weight formats apart on the device: codes here, scales there.

One function per encoding of ``quant/formats``, from bytes as they lie in a file to the words and
scales of `powerinfer.ops.gpu.formats`.
"""

import torch
from torch import Tensor

from powerinfer.quant import get_format

__all__ = ["packed_parts"]

_SUPERBLOCK = 256


def packed_parts(encoded: Tensor, format_name: str) -> tuple[Tensor, Tensor]:
    """Split rows of blocks.

    Args:
        encoded: u8[rows, row_bytes] tensor.
        format_name: one of the packed formats.

    Returns:
        i32[rows, columns * bits / 32] and f16[rows, columns / 32].
    """
    rows = encoded.shape[0]
    blocks = encoded.reshape(rows, -1, get_format(format_name).block_bytes)
    codes, scales = _SPLITTERS[format_name](blocks)
    words = codes.reshape(rows, -1).contiguous().view(torch.int32)
    return words, scales.reshape(rows, -1).contiguous()


def _halves(part: Tensor) -> Tensor:
    """f16 from the last dimension of bytes."""
    return part.contiguous().view(torch.float16)


def _q8_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    # Flipping the top bit of a signed byte adds 128.
    return blocks[..., 2:] ^ 0x80, _halves(blocks[..., :2])


def _q4_0(blocks: Tensor) -> tuple[Tensor, Tensor]:
    packed = blocks[..., 2:]
    codes = torch.cat([packed & 15, packed >> 4], dim=-1)
    return _nibbles(codes), _halves(blocks[..., :2])


def _lowbit2(blocks: Tensor) -> tuple[Tensor, Tensor]:
    codes = _in_order(_low_bits(blocks[..., 16:]))
    fields = codes.reshape(*codes.shape[:-1], -1, 4)
    packed = fields[..., 0] | fields[..., 1] << 2 | fields[..., 2] << 4 | fields[..., 3] << 6
    return packed, _halves(blocks[..., :16])


def _lowbit3(blocks: Tensor) -> tuple[Tensor, Tensor]:
    high = blocks[..., 80:]
    planes = torch.stack([high >> shift & 1 for shift in range(8)], dim=-2)
    codes = _low_bits(blocks[..., 16:80]) | planes.reshape(*high.shape[:-1], _SUPERBLOCK) << 2
    return _nibbles(_in_order(codes)), _halves(blocks[..., :16])


def _sign(blocks: Tensor) -> tuple[Tensor, Tensor]:
    # A set bit means negative in the file and positive here. A doubled magnitude that overflows
    # gives NaN scores, and with them neurons that pass.
    scales = _halves(blocks[..., 32:]) * 2
    return blocks[..., :32] ^ 0xFF, scales.expand(*scales.shape[:-1], _SUPERBLOCK // 32)


def _nibbles(codes: Tensor) -> Tensor:
    """Two codes to a byte."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def _low_bits(packed: Tensor) -> Tensor:
    """Two-bit codes in the order of places, see ``quant/formats/_lowbit.py``."""
    fields = torch.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], dim=-2)
    return fields.reshape(*packed.shape[:-1], _SUPERBLOCK)


def _in_order(codes: Tensor) -> Tensor:
    """From the order of places to that of the numbers."""
    grouped = codes.reshape(*codes.shape[:-1], 8, 8, 4).transpose(-3, -2)
    return grouped.reshape(*codes.shape)


_SPLITTERS = {
    "q8_0": _q8_0,
    "q4_0": _q4_0,
    "lowbit2": _lowbit2,
    "lowbit3": _lowbit3,
    "sign": _sign,
}
