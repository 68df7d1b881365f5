"""lowbit2: 256 numbers in 80 bytes, our own: eight half steps, then 64 bytes of 2-bit codes.

The number is step * (code - 1.5), one step per 32 numbers; order of codes and encoder:
``_lowbit.py``. For the copies of weights that predictors read; no file stores it. The error of
normally distributed numbers is a third of their deviation.
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

_BITS = 2
_FIRST_STEP = 0.996


def _decode(blocks: Bytes) -> Floats:
    return decode(blocks, unpack_low(blocks[:, 16:]), _BITS)


def _encode(values: Floats) -> Bytes:
    steps, codes = choose_codes(values, _BITS, _FIRST_STEP)
    return np.concatenate([steps, pack_low(codes)], axis=-1)


def _bound(values: Floats) -> Floats:
    return bound(values, _BITS)


FORMAT = QuantFormat("lowbit2", None, 256, 80, _decode, _encode, _bound, encode_limit=ENCODE_LIMIT)
