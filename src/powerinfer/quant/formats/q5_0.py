"""Q5_0: 32 elements in 22 bytes: half d, u32 of fifth bits, then 16 bytes of two 4-bit codes.

Element j has the low nibble of byte j and bit j of the u32, element j + 16 the high nibble and bit
j + 16; the number is (code - 16) * d. Source: ggml type 6 (``block_q5_0``).

Encoders: signed codes of ``_legacy.py``; with importances, ``_weighted.py``.
"""

from functools import partial

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    MAX_HALF,
    Bytes,
    Floats,
    halves,
    high_bits,
    nibble_pairs,
)
from powerinfer.quant.formats._legacy import bound_signed, encode_signed
from powerinfer.quant.formats._weighted import encode_signed_weighted

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    codes = nibble_pairs(blocks[:, 6:]) | high_bits(blocks, 2)
    return halves(blocks, 0) * (codes.astype(np.float32) - np.float32(16))


FORMAT = QuantFormat(
    "q5_0",
    6,
    32,
    22,
    _decode,
    encode_blocks=partial(encode_signed, bits=5),
    bound_blocks=partial(bound_signed, bits=5),
    encode_weighted=partial(encode_signed_weighted, bits=5),
    encode_limit=16 * MAX_HALF,
)
