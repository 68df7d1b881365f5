"""Q5_K: 256 elements in 176 bytes: half d, half dmin, 12 scale bytes, 32 high bytes, 128 codes.

Eight groups of 32 elements as in Q4_K; bit g of byte l of the high bytes is the fifth bit of
element l of group g. The number is d * s_g * code - dmin * m_g.
Source: ggml type 13 (``block_q5_K``). No encoder.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    Bytes,
    Floats,
    halves,
    nibble_pairs,
    packed_scales,
)

__all__ = ["FORMAT"]

_GROUPS = np.arange(8, dtype=np.uint8)[:, None]


def _decode(blocks: Bytes) -> Floats:
    scales, minima = packed_scales(blocks, 4)
    step = halves(blocks, 0) * scales.astype(np.float32)
    base = halves(blocks, 2) * minima.astype(np.float32)
    low = nibble_pairs(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    high = (blocks[:, None, 16:48] >> _GROUPS & 1) << 4
    numbers = step[:, :, None] * (low | high).astype(np.float32) - base[:, :, None]
    return numbers.reshape(-1, 256)


FORMAT = QuantFormat("q5_k", 13, 256, 176, _decode)
