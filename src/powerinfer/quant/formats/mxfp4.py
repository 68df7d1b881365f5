"""MXFP4: 32 elements in 17 bytes: an exponent byte e, then 16 bytes of two 4-bit floats.

Element j is the low nibble of byte j, element j + 16 the high nibble. A nibble is an e2m1 float:
a sign bit, then 0, 0.5, 1, 1.5, 2, 3, 4 or 6, times 2^(e - 127). Here the values are doubled and
the scale is halved, so that codes are small integers. Code 8 is +0. Source: ggml type 39
(``block_mxfp4``), OCP Microscaling Formats 1.0. Unlike there, e = 255 is a scale like the others;
above e = 252 the largest codes decode to infinity.

The encoder chooses e so that the largest magnitude of a block lies between 8 and 16 steps of
2^(e - 128), and the nearest value, of equally near ones the smaller. Its error is half the distance
between neighbouring values: half a step, 1 above 4, 2 above 8; beyond 12 steps, the distance to 12.
"""

import numpy as np
import numpy.typing as npt

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import Bytes, Floats, nibble_pairs

__all__ = ["FORMAT"]

_MAGNITUDES = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)
_VALUES: Floats = np.concatenate([_MAGNITUDES, np.float32(0) - _MAGNITUDES])
_MIDPOINTS = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / np.float32(2)

# 8 = 2^3 steps of 2^(e - 128) are the power of two whose exponent field is e + 2.
_FIELD_OF_LARGEST = 2


def _steps(exponents: npt.NDArray[np.integer]) -> Floats:
    """2^(e - 128); below e = 2 that is subnormal."""
    e = exponents.astype(np.uint32)
    subnormal = np.uint32(1 << 21) << np.minimum(e, 1)
    normal = (np.maximum(e, 1) - np.uint32(1)) << np.uint32(23)
    return np.where(e < 2, subnormal, normal).view(np.float32)


def _decode(blocks: Bytes) -> Floats:
    values: Floats = _VALUES[nibble_pairs(blocks[:, 1:])]
    return _steps(blocks[:, :1]) * values


def _exponents(values: Floats) -> npt.NDArray[np.int64]:
    largest = np.abs(values).max(axis=-1, keepdims=True)
    fields = np.ascontiguousarray(largest).view(np.uint32).astype(np.int64) >> 23
    exponents: npt.NDArray[np.int64] = np.maximum(fields - _FIELD_OF_LARGEST, 0)
    return exponents


def _encode(values: Floats) -> Bytes:
    exponents = _exponents(values)
    borders = _steps(exponents)[..., np.newaxis] * _MIDPOINTS
    codes = (np.abs(values)[..., np.newaxis] > borders).sum(axis=-1, dtype=np.uint8)
    codes |= ((values < 0) & (codes > 0)).astype(np.uint8) << 3
    nibbles = codes[:, :16] | (codes[:, 16:] << 4)
    return np.concatenate([exponents.astype(np.uint8), nibbles], axis=-1)


def _bound(values: Floats) -> Floats:
    step = _steps(_exponents(values))
    size = np.abs(values)
    half = np.where(size > 8 * step, 2 * step, np.where(size > 4 * step, step, step / 2))
    return np.maximum(half, size - 12 * step).astype(np.float32)


FORMAT = QuantFormat(
    "mxfp4", 39, 32, 17, _decode, _encode, _bound, encode_limit=float(np.finfo(np.float32).max)
)
