"""F32: IEEE 754 single precision, little-endian, no blocks. Encoding is exact.

Source: ggml type 0 (block of 1 element, 4 bytes).
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import Bytes, Floats

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    return blocks.view("<f4").astype(np.float32, copy=False)


def _encode(values: Floats) -> Bytes:
    return np.ascontiguousarray(values.astype("<f4", copy=False)).view(np.uint8)


def _bound(values: Floats) -> Floats:
    return np.zeros_like(values)


FORMAT = QuantFormat("f32", 0, 1, 4, _decode, _encode, _bound)
