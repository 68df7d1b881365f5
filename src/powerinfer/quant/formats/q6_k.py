"""Q6_K: 256 elements in 210 bytes: 128 low bytes, 64 high bytes, 16 signed scales, half d last.

Two halves h of 128 elements use low bytes 64h.., high bytes 32h.. and scales 8h... Element l of
group g (0..3) in half h has the low (g < 2) or high (g >= 2) nibble of low byte l + 32 * (g mod 2)
and bits 2g, 2g + 1 of high byte l; the number is d * scale[2g + l / 16] * (code - 32) and goes to
128h + 32g + l. Source: ggml type 14 (``block_q6_K``).

The encoder finds a scale for each sixteen elements (`fit_signed`). The largest is -128 units d;
each group takes the neighbouring stored scale with the smallest error, and then the nearest codes.
Twice, d is fitted to codes and scales by least squares, and these are chosen again; a block keeps
the choice with the smallest error.
Operations and their order are those of cpp/kernels/isa/shared/encode_k-inl.h.
"""

import numpy as np

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import MAX_HALF, Bytes, Floats, halves, nibble_pairs
from powerinfer.quant.formats._k_quants import Choice, bound_of, unweighted
from powerinfer.quant.formats._search import (
    Fit,
    Scaled,
    fit_signed,
    in_range,
    inverse_steps,
    nearest_codes,
    nearest_whole,
    no_fit,
    round_scale,
    summed,
    with_error,
)

__all__ = ["FORMAT"]

_STEPS = tuple(np.float32(x) for x in (-2, -1, 0, 1, 2))
_ZERO = np.float32(0)
_UNIT_FITS = 2
_SHIFTS = np.array([0, 2, 4, 6], np.uint8)[:, None]


def _decode(blocks: Bytes) -> Floats:
    low = nibble_pairs(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> _SHIFTS & 3
    codes = (low | (high << 4)).astype(np.float32) - np.float32(32)
    scales = halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scales[:, :, None] * codes.reshape(-1, 16, 16)).reshape(-1, 256)


def _best(values: Floats, weights: Floats) -> Choice:
    scaled = in_range(values, weights, 16)
    fit = fit_signed(scaled, -32, 31)
    place = np.abs(fit.scale).argmax(axis=-1, keepdims=True)
    largest = np.take_along_axis(fit.scale, place, axis=-1)
    best = choice = _choose(scaled, fit.scale, _ZERO - largest / np.float32(128))
    for _ in range(_UNIT_FITS):
        choice = _choose(scaled, fit.scale, _fitted_unit(scaled, choice))
        best = best.better_of(choice)
    return best


def _choose(scaled: Scaled, wanted: Floats, unit: Floats) -> Choice:
    """Choose scales and codes for a unit, which is rounded first; all minima are 0."""
    half, d = round_scale(unit, scaled)
    nearest = nearest_whole(wanted * inverse_steps(d), -128, 127)
    no_base = np.zeros_like(wanted)
    best = no_fit(wanted.shape)
    for step in _STEPS:
        scales = nearest_whole(nearest + step, -128, 127)
        codes = nearest_codes(scaled.x, no_base, inverse_steps(d * scales), -32, 31)
        error = with_error(scaled, codes, d * scales, no_base).error
        best = best.better_of(Fit(scales, no_base, error))
    codes = nearest_codes(scaled.x, no_base, inverse_steps(d * best.scale), -32, 31)
    of_blocks = summed(best.error.T.astype(np.float64), (len(d),))
    return Choice(half, best.scale, no_base, codes, of_blocks)


def _fitted_unit(scaled: Scaled, choice: Choice) -> Floats:
    """Fit d to codes and scales by least squares: f32[num_blocks, 1]."""
    weighted = scaled.weights * choice.codes
    squares = summed(weighted * choice.codes, choice.scales.shape).astype(np.float64)
    products = summed(weighted * scaled.x, choice.scales.shape).astype(np.float64)
    scales = choice.scales.astype(np.float64)
    below = summed((scales * scales * squares).T, squares.shape[:1])
    above = summed((scales * products).T, squares.shape[:1])
    return np.where(below > 0, above / below, 0).astype(np.float32)[:, np.newaxis]


def _encode(values: Floats, weights: Floats) -> Bytes:
    best = _best(values, weights)
    codes = (np.moveaxis(best.codes, 0, -1) + np.float32(32)).astype(np.uint8)
    codes = codes.reshape(-1, 2, 4, 32)
    nibbles, tops = codes & np.uint8(15), codes >> 4
    low = (nibbles[:, :, :2] | nibbles[:, :, 2:] << np.uint8(4)).reshape(-1, 128)
    high = np.bitwise_or.reduce(tops << _SHIFTS, axis=2).reshape(-1, 64)
    scales = best.scales.astype(np.int8).view(np.uint8)
    return np.concatenate([low, high, scales, best.halves.view(np.uint8)], axis=-1)


def _bound(values: Floats) -> Floats:
    best = _best(values, np.ones_like(values))
    step = best.halves.astype(np.float32) * best.scales
    ends = np.sort(np.stack([step * np.float32(-32), step * np.float32(31)]), axis=0)
    return bound_of(values.reshape(-1, 16, 16), step, *ends).reshape(values.shape)


FORMAT = QuantFormat(
    "q6_k",
    14,
    256,
    210,
    _decode,
    encode_blocks=unweighted(_encode),
    bound_blocks=_bound,
    encode_weighted=_encode,
    encode_limit=127 * 31 * MAX_HALF,
)
