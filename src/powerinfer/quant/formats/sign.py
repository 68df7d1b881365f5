"""sign: 256 numbers in 34 bytes, our own: one bit each, then half d; numbers are d or -d.

Bit i % 8 of byte i / 8 is set where number i is negative. An exact zero counts as negative at odd
places, so that the padding of a row adds nothing to a product of signs. d is the mean magnitude of
the superblock, not counting the zeros at its end; summed in f32 in the order of the native encoder.

For the copies of weights that predictors read; no file stores it. The native kernels binarise the
other factor too: x counts as its sign times its mean magnitude.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    MAX_HALF,
    Bytes,
    Floats,
    half_bytes,
    halves,
    scale_error,
)

__all__ = ["FORMAT"]

_ODD_PLACES = np.arange(256) % 2 == 1


def _decode(blocks: Bytes) -> Floats:
    negative = np.unpackbits(blocks[:, :32], axis=-1, bitorder="little")
    d = halves(blocks, 32)
    numbers: Floats = np.where(negative, -d, d)
    return numbers


def _scales(values: Floats) -> Floats:
    lanes: Floats = np.zeros((len(values), 16), np.float32)
    for part in np.split(np.abs(values), 16, axis=-1):
        lanes += part
    for width in (8, 4, 2, 1):
        lanes = lanes[:, :width] + lanes[:, width:]
    used = np.where(values != 0, np.arange(1, 257), 0).max(axis=-1, keepdims=True)
    scales: Floats = lanes / np.maximum(used, 1).astype(np.float32)
    return scales


def _encode(values: Floats) -> Bytes:
    negative = (values < 0) | ((values == 0) & _ODD_PLACES)
    bits = np.packbits(negative, axis=-1, bitorder="little")
    return np.concatenate([bits, half_bytes(_scales(values))], axis=-1)


def _bound(values: Floats) -> Floats:
    # Numbers keep their sign, so the error is at most the larger of the two magnitudes.
    d = _scales(values)
    largest = d * np.float32(1 + 2.0**-18) + scale_error(d)
    bounds: Floats = np.maximum(np.abs(values), largest).astype(np.float32)
    return bounds


FORMAT = QuantFormat("sign", None, 256, 34, _decode, _encode, _bound, encode_limit=MAX_HALF)
