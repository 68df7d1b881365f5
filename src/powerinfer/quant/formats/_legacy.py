"""Formats of blocks of 32 elements with 4 and 5 bits, encoded like ggml's reference quantizer.

Signed codes (Q4_0, Q5_0): d = m / -half with m the number of largest magnitude, first of equals,
and half = 8 or 16; code = trunc(x / d + half + 0.5), at most the last. The error is |d| / 2, but up
to |d| for numbers near -m (the code +half does not exist), plus `half` times the rounding of d.

Offset codes (Q4_1, Q5_1): d = (largest - smallest) / last code and m = smallest; code =
trunc((x - m) / d + 0.5). The error is d / 2, plus the roundings of m and, times the code, of d.

Steps are only rounded to halves for storage. Encoders with importances: ``_weighted.py``.
"""

from functools import partial

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    MAX_HALF,
    Bytes,
    Floats,
    code_bytes,
    codes_of,
    half_bytes,
    halves,
    inverse_of,
    scale_error,
)
from powerinfer.quant.formats._weighted import encode_offset_weighted, encode_signed_weighted

__all__ = ["offset_format", "signed_format"]


def signed_format(name: str, ggml_type: int, bits: int) -> QuantFormat:
    """Make a format of a half d and signed codes: the number is (code - 2^(bits - 1)) * d."""
    return QuantFormat(
        name,
        ggml_type,
        block_size=32,
        block_bytes=2 + 4 * bits,
        decode_blocks=partial(_decode_signed, bits=bits),
        encode_blocks=partial(_encode_signed, bits=bits),
        bound_blocks=partial(_bound_signed, bits=bits),
        encode_weighted=partial(encode_signed_weighted, bits=bits),
        encode_limit=(1 << (bits - 1)) * MAX_HALF,
    )


def offset_format(name: str, ggml_type: int, bits: int) -> QuantFormat:
    """Make a format of halves d and m and codes: the number is code * d + m."""
    return QuantFormat(
        name,
        ggml_type,
        block_size=32,
        block_bytes=4 + 4 * bits,
        decode_blocks=partial(_decode_offset, bits=bits),
        encode_blocks=partial(_encode_offset, bits=bits),
        bound_blocks=partial(_bound_offset, bits=bits),
        encode_weighted=partial(encode_offset_weighted, bits=bits),
        encode_limit=MAX_HALF,
    )


def _decode_signed(blocks: Bytes, bits: int) -> Floats:
    codes = codes_of(blocks[:, 2:], bits).astype(np.float32) - np.float32(1 << (bits - 1))
    return halves(blocks, 0) * codes


def _decode_offset(blocks: Bytes, bits: int) -> Floats:
    codes = codes_of(blocks[:, 4:], bits).astype(np.float32)
    return halves(blocks, 0) * codes + halves(blocks, 2)


def _signed_steps(values: Floats, bits: int) -> Floats:
    largest = np.abs(values).argmax(axis=-1, keepdims=True)
    return np.take_along_axis(values, largest, axis=-1) / np.float32(-(1 << (bits - 1)))


def _encode_signed(values: Floats, bits: int) -> Bytes:
    d = _signed_steps(values, bits)
    places = values * inverse_of(d) + np.float32((1 << (bits - 1)) + 0.5)
    codes = np.trunc(places).clip(0, (1 << bits) - 1)
    return np.concatenate([half_bytes(d), code_bytes(codes, bits)], axis=-1)


def _bound_signed(values: Floats, bits: int) -> Floats:
    half = np.float32(1 << (bits - 1))
    d = _signed_steps(values, bits)
    steps = np.where(d == 0, np.float32(0), values / d)
    missing_code = np.maximum(np.float32(0.5), steps - (half - 1))
    # The last term covers the rounding of x / d + half + 0.5 itself.
    of_codes = np.abs(d) * (missing_code + half * np.float32(2.0**-21))
    return (of_codes + half * scale_error(d)).astype(np.float32)


def _offset_steps(values: Floats, bits: int) -> tuple[Floats, Floats]:
    # The first of several zeros decides the sign, which min and max leave open.
    places = (values.argmin(axis=-1, keepdims=True), values.argmax(axis=-1, keepdims=True))
    smallest, largest = (np.take_along_axis(values, place, axis=-1) for place in places)
    return (largest - smallest) / np.float32((1 << bits) - 1), smallest


def _encode_offset(values: Floats, bits: int) -> Bytes:
    d, smallest = _offset_steps(values, bits)
    places = (values - smallest) * inverse_of(d) + np.float32(0.5)
    codes = np.trunc(places).clip(0, (1 << bits) - 1)
    return np.concatenate([half_bytes(d), half_bytes(smallest), code_bytes(codes, bits)], axis=-1)


def _bound_offset(values: Floats, bits: int) -> Floats:
    last = np.float32((1 << bits) - 1)
    d, smallest = _offset_steps(values, bits)
    # Besides half a step: rounding of the place of x, and of the sum of a decoded number.
    of_codes = d * (np.float32(0.5) + last * np.float32(2.0**-21))
    of_sum = np.abs(values).max(axis=-1, keepdims=True) * np.float32(2.0**-22)
    error = of_codes + last * scale_error(d) + scale_error(smallest) + of_sum
    return np.broadcast_to(error, values.shape).astype(np.float32)
