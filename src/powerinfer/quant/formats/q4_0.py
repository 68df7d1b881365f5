"""Q4_0: 32 elements in 18 bytes: half d, then 16 bytes of two 4-bit codes.

Element j is (low nibble of byte j - 8) * d, element j + 16 is (high nibble of byte j - 8) * d.
Source: ggml type 2 (``block_q4_0``).
Encoders: signed codes of ``_legacy.py``; with importances, ``_weighted.py``.
"""

from functools import partial

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import MAX_HALF, Bytes, Floats, halves, nibble_pairs
from powerinfer.quant.formats._legacy import bound_signed, encode_signed
from powerinfer.quant.formats._weighted import encode_signed_weighted

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    codes = nibble_pairs(blocks[:, 2:]).astype(np.float32) - np.float32(8)
    return halves(blocks, 0) * codes


FORMAT = QuantFormat(
    "q4_0",
    2,
    32,
    18,
    _decode,
    encode_blocks=partial(encode_signed, bits=4),
    bound_blocks=partial(bound_signed, bits=4),
    encode_weighted=partial(encode_signed_weighted, bits=4),
    encode_limit=8 * MAX_HALF,
)
