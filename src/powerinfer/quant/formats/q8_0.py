"""Q8_0: 32 elements in 34 bytes: half d, then 32 signed bytes; the number is code * d.

Source: ggml type 8 (``block_q8_0``).

The encoder takes d = (largest magnitude) / 127 and rounds x / d to nearest, ties away from zero,
with d not yet rounded to a half. Its error is d / 2 plus 127 times the rounding of d. Encoder with
importances: ``_weighted.py``.
"""

from functools import partial

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    MAX_HALF,
    Bytes,
    Floats,
    half_bytes,
    halves,
    inverse_of,
    scale_error,
)
from powerinfer.quant.formats._weighted import encode_signed_weighted

__all__ = ["FORMAT"]


def _decode(blocks: Bytes) -> Floats:
    return halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _scales(values: Floats) -> Floats:
    largest: Floats = np.abs(values).max(axis=-1, keepdims=True)
    return largest / np.float32(127)


def _encode(values: Floats) -> Bytes:
    d = _scales(values)
    steps = values * inverse_of(d)
    whole = np.floor(np.abs(steps))
    # floor(|x| + 0.5) would round 0.49999997 up, because the sum itself rounds to one.
    nearest = whole + (np.abs(steps) - whole >= 0.5)
    codes = np.copysign(nearest, steps).astype(np.int8)
    return np.concatenate([half_bytes(d), codes.view(np.uint8)], axis=-1)


def _bound(values: Floats) -> Floats:
    d = _scales(values)
    # The last term covers the rounding of x / d itself, at most 127 halves of an ulp.
    error = d * np.float32(0.5 + 2.0**-16) + 127 * scale_error(d)
    return np.broadcast_to(error, values.shape).copy()


FORMAT = QuantFormat(
    "q8_0",
    8,
    32,
    34,
    _decode,
    encode_blocks=_encode,
    bound_blocks=_bound,
    encode_weighted=partial(encode_signed_weighted, bits=8),
    encode_limit=127 * MAX_HALF,
)
