"""F16: IEEE 754 half precision, little-endian, no blocks.

Source: ggml type 1 (block of 1 element, 2 bytes). Encoding rounds to nearest, ties to even: the
error is at most 2^-11 of the number, or 2^-25 below the normal range; numbers from 65520 on become
infinity, as the format prescribes.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import HALF_EPSILON, HALF_TINY, MAX_HALF, Bytes, Floats

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    return blocks.view("<f2").astype(np.float32)


def _encode(values: Floats) -> Bytes:
    return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)


def _bound(values: Floats) -> Floats:
    size = np.abs(values)
    error = np.maximum(size * np.float32(HALF_EPSILON), np.float32(HALF_TINY))
    return np.where(size > MAX_HALF, np.float32(np.inf), error)


FORMAT = QuantFormat("f16", 1, 1, 2, _decode, _encode, _bound)
