"""Q6_K: 256 elements in 210 bytes: 128 low bytes, 64 high bytes, 16 signed scales, half d last.

Two halves h of 128 elements use low bytes 64h.., high bytes 32h.. and scales 8h... Element l of
group g (0..3) in half h has the low (g < 2) or high (g >= 2) nibble of low byte l + 32 * (g mod 2)
and bits 2g, 2g + 1 of high byte l; the number is d * scale[2g + l / 16] * (code - 32) and goes to
128h + 32g + l. Source: ggml type 14 (``block_q6_K``). No encoder.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import Bytes, Floats, halves, nibble_pairs

__all__ = ["FORMAT"]

_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode(blocks: Bytes) -> Floats:
    low = nibble_pairs(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _SHIFTS & 3
    codes = (low | (high << 4)).astype(np.float32) - np.float32(32)
    scales = halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[:, :, None] * codes.reshape(-1, 16, 16)).reshape(-1, 256)


FORMAT = QuantFormat("q6_k", 14, 256, 210, _decode)
