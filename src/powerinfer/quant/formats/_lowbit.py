"""The formats ``lowbit2`` and ``lowbit3``: order of codes and choice of steps.

A superblock is 256 numbers, 8 blocks of 32, each with its own step; a number is
step * (code - (2^bits - 1) / 2), so there is no code for zero. Codes are ordered for vector
instructions: number 4 v + k of block j has place 32 v + 4 j + k (v < 8, k < 4), and byte i of
``low`` holds in bits 2 p and 2 p + 1 the low bits of place 64 p + i. With three bits, bit v of byte
i of ``high``, which follows, is the high bit of place 32 v + i.

The encoder starts with a step in proportion to the root mean square of the block, optimal for
normally distributed numbers (J. Max, "Quantizing for minimum distortion", 1960), chooses codes,
fits the step to them by least squares, and repeats both once. All of it is f32 in a fixed
order, so the native encoder gives the same bytes.
"""

from functools import partial

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    HALF_EPSILON,
    HALF_TINY,
    MAX_HALF,
    Bytes,
    Floats,
    half_bytes,
    halves,
)

__all__ = ["lowbit_format"]

# Steps are at most twice the largest number, and must be finite as halves.
_ENCODE_LIMIT = MAX_HALF / 2
_FITS = 2
_SHIFTS = np.arange(8, dtype=np.uint8)[:, None]
# Below this the inverse of a step overflows; such a step is zero as a half.
_TINY_STEP = np.float32(2.0**-126)


def lowbit_format(name: str, bits: int, first_step: float) -> QuantFormat:
    """Make a format of eight half steps and codes of 2 or 3 bits.

    Args:
        first_step: initial step of the encoder, in units of the block's root mean square.
    """
    return QuantFormat(
        name,
        ggml_type=None,
        block_size=256,
        block_bytes=16 + 32 * bits,
        decode_blocks=partial(_decode, bits=bits),
        encode_blocks=partial(_encode, bits=bits, first_step=first_step),
        bound_blocks=partial(_bound, bits=bits),
        encode_limit=_ENCODE_LIMIT,
    )


def _places(numbers: Bytes) -> Bytes:
    """Reorder u8[n, 256] from the order of the numbers to that of places, or back."""
    return numbers.reshape(-1, 8, 8, 4).transpose(0, 2, 1, 3).reshape(-1, 256)


def _decode(blocks: Bytes, bits: int) -> Floats:
    codes: Bytes = blocks[:, None, 16:80] >> _SHIFTS[::2] & np.uint8(3)
    codes = codes.reshape(-1, 256)
    if bits == 3:
        high: Bytes = blocks[:, None, 80:] >> _SHIFTS & np.uint8(1)
        codes |= high.reshape(-1, 256) << np.uint8(2)
    centred = _places(codes).astype(np.float32) - _centre(bits)
    numbers: Floats = halves(blocks, 0, 8)[:, :, None] * centred.reshape(-1, 8, 32)
    return numbers.reshape(-1, 256)


def _encode(values: Floats, bits: int, first_step: float) -> Bytes:
    steps, codes = _choose_codes(values, bits, first_step)
    quarters = codes.reshape(-1, 4, 64) & np.uint8(3)
    parts = [steps, np.bitwise_or.reduce(quarters << _SHIFTS[::2], axis=1)]
    if bits == 3:
        high = codes.reshape(-1, 8, 32) >> np.uint8(2)
        parts.append(np.bitwise_or.reduce(high << _SHIFTS, axis=1))
    return np.concatenate(parts, axis=-1)


def _choose_codes(values: Floats, bits: int, first_step: float) -> tuple[Bytes, Bytes]:
    """Choose steps, as halves u8[n, 16], and codes in order of places, u8[n, 256]."""
    blocks = values.reshape(-1, 32)
    mean_square = _sums(blocks * blocks) / np.float32(32)
    steps = np.sqrt(mean_square) * np.float32(first_step)
    for _ in range(_FITS):
        codes = _codes(blocks, steps, bits)
        centred = codes - _centre(bits)
        steps = _sums(blocks * centred) / _sums(centred * centred)
    return half_bytes(steps.reshape(-1, 8)), _places(codes.astype(np.uint8).reshape(-1, 256))


def _bound(values: Floats, bits: int) -> Floats:
    """Bound the error of each number, f32[n, 256].

    A fitted step is at most twice the root mean square (Cauchy and Schwarz, no centred code being
    below 1/2), and a number keeps its sign: its error is at most the larger of the two magnitudes.
    """
    blocks = values.reshape(-1, 32)
    squares = np.square(blocks, dtype=np.float64).mean(axis=-1, keepdims=True)
    largest_code = float(_centre(bits))
    step = 2.0 * np.sqrt(squares) * (1 + HALF_EPSILON + 2.0**-18) + HALF_TINY
    error = np.maximum(np.abs(blocks), largest_code * step) * (1 + 2.0**-20)
    bounds: Floats = error.astype(np.float32)
    return bounds.reshape(values.shape)


def _centre(bits: int) -> np.float32:
    return np.float32((2**bits - 1) / 2)


def _codes(blocks: Floats, steps: Floats, bits: int) -> Floats:
    inverse = np.where(steps < _TINY_STEP, np.float32(0), np.float32(1) / steps)
    shifted = blocks * inverse + np.float32(2 ** (bits - 1))
    codes: Floats = np.trunc(shifted.clip(np.float32(0), np.float32(2**bits - 1)))
    return codes


def _sums(terms: Floats) -> Floats:
    """Sum rows of 32 in the order of the native kernels: f32[n, 1]."""
    lanes: Floats = terms[:, :16] + terms[:, 16:]
    for width in (8, 4, 2, 1):
        lanes = lanes[:, :width] + lanes[:, width:]
    return lanes
