"""Fields shared by block layouts: halves, nibbles, packed 6-bit scales.

All layouts are little-endian; arrays have one row per block.
"""

import numpy as np
import numpy.typing as npt

__all__ = [
    "HALF_EPSILON",
    "HALF_TINY",
    "MAX_HALF",
    "Bytes",
    "Floats",
    "code_bytes",
    "codes_of",
    "half_bytes",
    "halves",
    "inverse_of",
    "nibble_pairs",
    "packed_scales",
    "scale_error",
]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

MAX_HALF = 65504.0
"""Largest finite IEEE 754 half."""
HALF_EPSILON = 2.0**-11
"""Largest relative error of rounding to an IEEE 754 half in its normal range."""
HALF_TINY = 2.0**-25
"""Largest absolute error of rounding to an IEEE 754 half below its normal range."""


def halves(blocks: Bytes, start: int, count: int = 1) -> Floats:
    """Read `count` half-precision fields at byte `start`: f32[num_blocks, count]."""
    field = np.ascontiguousarray(blocks[:, start : start + 2 * count])
    return field.view("<f2").astype(np.float32)


def half_bytes(values: Floats) -> Bytes:
    """Write half-precision fields: f32[num_blocks, n] to u8[num_blocks, 2 * n]."""
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def nibble_pairs(packed: Bytes) -> Bytes:
    """Unpack bytes to all their low nibbles followed by all their high nibbles."""
    return np.concatenate([packed & 0x0F, packed >> 4], axis=-1)


def code_bytes(codes: Floats, bits: int) -> Bytes:
    """Pack 32 codes of 4 or 5 bits: four bytes of fifth bits, if any, then `nibble_pairs`."""
    whole = codes.astype(np.uint8)
    nibbles = (whole[:, :16] & np.uint8(15)) | (whole[:, 16:] << np.uint8(4))
    if bits == 4:
        return nibbles
    return np.concatenate([np.packbits(whole >> 4, axis=-1, bitorder="little"), nibbles], axis=-1)


def codes_of(packed: Bytes, bits: int) -> Bytes:
    """Unpack the codes that `code_bytes` packed: u8[num_blocks, 32]."""
    if bits == 4:
        return nibble_pairs(packed)
    fifth = np.unpackbits(packed[:, :4], axis=-1, bitorder="little")
    return nibble_pairs(packed[:, 4:]) | fifth << np.uint8(4)


def inverse_of(step: Floats) -> Floats:
    """Invert steps; 0 where that would overflow, as such a step is zero as a half."""
    return np.where(np.abs(step) < 2.0**-126, np.float32(0), np.float32(1) / step)


def packed_scales(blocks: Bytes, start: int) -> tuple[Bytes, Bytes]:
    """Unpack the twelve bytes that hold eight 6-bit scales and eight 6-bit minima.

    Bytes 0-3 hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits; bytes 8-11 hold the
    low four bits of scales 4-7 (low nibble) and minima 4-7 (high nibble), whose upper two bits are
    the upper two bits of bytes 0-3 and 4-7.

    Returns:
        scales and minima, each u8[num_blocks, 8] in [0, 64).
    """
    first, second, third = (blocks[:, start + 4 * i : start + 4 * i + 4] for i in range(3))
    scales = np.concatenate([first & 63, (third & 15) | (first >> 6 << 4)], axis=-1)
    minima = np.concatenate([second & 63, (third >> 4) | (second >> 6 << 4)], axis=-1)
    return scales, minima


def scale_error(scale: Floats) -> Floats:
    """Bound the error of storing a scale as a half; infinity on overflow."""
    error = np.maximum(np.abs(scale) * np.float32(HALF_EPSILON), np.float32(HALF_TINY))
    return np.where(np.abs(scale) > MAX_HALF, np.float32(np.inf), error)
