"""Q4_K: 256 elements in 144 bytes: half d, half dmin, 12 bytes of scales, 128 bytes of codes.

Eight groups of 32 elements, group g with a 6-bit scale s_g and a 6-bit minimum m_g (packed as
`packed_scales` says). Bytes 32p .. 32p + 31 of the codes hold group 2p in their low and group
2p + 1 in their high nibbles; the number is d * s_g * code - dmin * m_g.
Source: ggml type 12 (``block_q4_K``). No encoder.
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


def _decode(blocks: Bytes) -> Floats:
    scales, minima = packed_scales(blocks, 4)
    step = halves(blocks, 0) * scales.astype(np.float32)
    base = halves(blocks, 2) * minima.astype(np.float32)
    codes = nibble_pairs(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    numbers = step[:, :, None] * codes.astype(np.float32) - base[:, :, None]
    return numbers.reshape(-1, 256)


FORMAT = QuantFormat("q4_k", 12, 256, 144, _decode)
