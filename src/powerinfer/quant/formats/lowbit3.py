"""lowbit3: 256 numbers in 112 bytes, our own: 8 half steps, 64 bytes of low bits, 32 of high bits.

The number is step * (code - 3.5), one step per 32 numbers. Bytes 16 to 79 hold the two low bits of
the codes like ``lowbit2``; bit v of byte 80 + i is the high bit of place 32 v + i. Order of codes
and encoder: ``_lowbit.py``. For the copies of weights that predictors read; no file stores it. The
error of normally distributed numbers is a fifth of their deviation.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import Bytes, Floats
from powerinfer.quant.formats._lowbit import (
    ENCODE_LIMIT,
    bound,
    choose_codes,
    decode,
    pack_low,
    unpack_low,
)

__all__ = ["FORMAT"]

_BITS = 3
_FIRST_STEP = 0.586
_SHIFTS = np.arange(8, dtype=np.uint8)[:, None]


def _decode(blocks: Bytes) -> Floats:
    high: Bytes = blocks[:, None, 80:] >> _SHIFTS & np.uint8(1)
    codes: Bytes = unpack_low(blocks[:, 16:80]) | high.reshape(-1, 256) << np.uint8(2)
    return decode(blocks, codes, _BITS)


def _encode(values: Floats) -> Bytes:
    steps, codes = choose_codes(values, _BITS, _FIRST_STEP)
    high = (codes.reshape(-1, 8, 32) >> np.uint8(2) << _SHIFTS).sum(axis=1, dtype=np.uint8)
    return np.concatenate([steps, pack_low(codes), high], axis=-1)


def _bound(values: Floats) -> Floats:
    return bound(values, _BITS)


FORMAT = QuantFormat("lowbit3", None, 256, 112, _decode, _encode, _bound, encode_limit=ENCODE_LIMIT)
