"""Q5_1: 32 elements in 24 bytes: half d, half m, u32 of fifth bits, 16 bytes of 4-bit codes.

Element j has the low nibble of byte j and bit j of the u32, element j + 16 the high nibble and bit
j + 16; the number is code * d + m. Source: ggml type 7 (``block_q5_1``).

Encoders: offset codes of ``_legacy.py``; with importances, ``_weighted.py``.
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
from powerinfer.quant.formats._legacy import bound_offset, encode_offset
from powerinfer.quant.formats._weighted import encode_offset_weighted

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    codes = nibble_pairs(blocks[:, 8:]) | high_bits(blocks, 4)
    return halves(blocks, 0) * codes.astype(np.float32) + halves(blocks, 2)


FORMAT = QuantFormat(
    "q5_1",
    7,
    32,
    24,
    _decode,
    encode_blocks=partial(encode_offset, bits=5),
    bound_blocks=partial(bound_offset, bits=5),
    encode_weighted=partial(encode_offset_weighted, bits=5),
    encode_limit=MAX_HALF,
)
