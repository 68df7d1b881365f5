"""Q4_1: 32 elements in 20 bytes: half d, half m, then 16 bytes of two 4-bit codes.

Element j is (low nibble of byte j) * d + m, element j + 16 uses the high nibble.
Source: ggml type 3 (``block_q4_1``).

Encoders: offset codes of ``_legacy.py``; with importances, ``_weighted.py``.
"""

from functools import partial

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import MAX_HALF, Bytes, Floats, halves, nibble_pairs
from powerinfer.quant.formats._legacy import bound_offset, encode_offset
from powerinfer.quant.formats._weighted import encode_offset_weighted

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    codes = nibble_pairs(blocks[:, 4:]).astype(np.float32)
    return halves(blocks, 0) * codes + halves(blocks, 2)


FORMAT = QuantFormat(
    "q4_1",
    3,
    32,
    20,
    _decode,
    encode_blocks=partial(encode_offset, bits=4),
    bound_blocks=partial(bound_offset, bits=4),
    encode_weighted=partial(encode_offset_weighted, bits=4),
    encode_limit=MAX_HALF,
)
