"""BF16: the upper half of an IEEE 754 single, little-endian, no blocks.

Source: ggml type 30 (block of 1 element, 2 bytes). Encoding rounds to nearest, ties to even, and
keeps a NaN a (quiet) NaN: the error is at most 2^-8 of the number, or 2^-134 below the normal
range; the 2^-9 of numbers next to the largest f32 become infinity.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import Bytes, Floats

__all__ = ["FORMAT"]

_MAX_BF16 = np.array(0x7F7F0000, np.uint32).view(np.float32)
_SIGN_AND_HIGH = np.uint32(0xFFFF0000)
_INFINITY = np.uint32(0x7F800000)
_QUIET = np.uint32(0x00400000)


def _decode(blocks: Bytes) -> Floats:
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _encode(values: Floats) -> Bytes:
    bits = values.view(np.uint32)
    # Half of the dropped range, plus one where the kept part is odd: ties go to even.
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & _SIGN_AND_HIGH
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > _INFINITY
    kept = np.where(is_nan, (bits & _SIGN_AND_HIGH) | _QUIET, rounded)
    return np.ascontiguousarray((kept >> 16).astype("<u2")).view(np.uint8)


def _bound(values: Floats) -> Floats:
    size = np.abs(values)
    error = np.maximum(size * np.float32(2.0**-8), np.float32(2.0**-134))
    return np.where(size > _MAX_BF16, np.float32(np.inf), error)


FORMAT = QuantFormat("bf16", 30, 1, 2, _decode, _encode, _bound)
