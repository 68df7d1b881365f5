"""Q4_0: 32 elements in 18 bytes: half d, then 16 bytes of two 4-bit codes.

Element j is (low nibble of byte j - 8) * d, element j + 16 is (high nibble of byte j - 8) * d.
Source: ggml type 2 (``block_q4_0``).

The encoder takes d = m / -8 with m the number of largest magnitude in the block, first of equals,
and code = min(15, trunc(x / d + 8.5)) with d not yet rounded to a half. Its error is |d| / 2, but
up to |d| for numbers near -m (the code +8 does not exist), plus eight times the rounding of d.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    MAX_HALF,
    Bytes,
    Floats,
    half_bytes,
    halves,
    nibble_pairs,
    scale_error,
)

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    codes = nibble_pairs(blocks[:, 2:]).astype(np.float32) - np.float32(8)
    return halves(blocks, 0) * codes


def _scales(values: Floats) -> Floats:
    largest = np.abs(values).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(values, largest, axis=-1) / np.float32(-8)


def _encode(values: Floats) -> Bytes:
    d = _scales(values)
    # Below 2^-128 the inverse overflows; such a scale is zero as a half, so any code is right.
    inverse = np.where(np.abs(d) < 2.0**-126, np.float32(0), np.float32(1) / d)
    codes = np.trunc(values * inverse + np.float32(8.5)).clip(0, 15).astype(np.uint8)
    return np.concatenate([half_bytes(d), codes[:, :16] | (codes[:, 16:] << 4)], axis=-1)


def _bound(values: Floats) -> Floats:
    d = _scales(values)
    steps = np.where(d == 0, np.float32(0), values / d)
    missing_code = np.maximum(np.float32(0.5), steps - np.float32(7))
    # The last term covers the rounding of x / d + 8.5 itself.
    of_codes = np.abs(d) * (missing_code + np.float32(2.0**-18))
    return (of_codes + np.float32(8) * scale_error(d)).astype(np.float32)


FORMAT = QuantFormat("q4_0", 2, 32, 18, _decode, _encode, _bound, encode_limit=8 * MAX_HALF)
