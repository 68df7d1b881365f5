"""Searches for the scale of a group of numbers with the least sum of weighted squared errors.

Several starting scales choose codes, the scale (and a base) is fitted to the codes by least
squares, and the fit with the smallest error is refined: codes chosen by it, fitted once more.

Native encoders give the same bytes (cpp/kernels/isa/shared/encode_search-inl.h), so the order of
operations is part of the definition: all in f32, sums over the numbers of a group sequential. The
numbers of a group are the first dimension: f32[group_size, ...].
"""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from powerinfer.quant.formats._blocks import MAX_HALF, Floats

__all__ = [
    "Fit",
    "Halves",
    "Scaled",
    "fit_offset",
    "fit_signed",
    "in_range",
    "inverse_steps",
    "nearest_codes",
    "nearest_whole",
    "no_fit",
    "round_scale",
    "summed",
    "with_error",
]

Halves = npt.NDArray[np.float16]
Number = TypeVar("Number", np.float32, np.float64)

_ZERO = np.float32(0)
# Numbers below this have no scale as a half.
_TINY = np.float32(2.0**-60)
# Floats of this size have no fraction.
_WHOLE = np.float32(1.5 * 2.0**23)

# Starting points of the searches, in codes: extension of the range of numbers, and offset of the
# first code from the smallest number. Found by experiment; more of them reduce errors slightly.
_MORE_CODES = tuple(np.float32(x) for x in (-1.0, -0.4, 0.2, 0.8, 1.4, 2.0))
_FIRST_CODES = tuple(np.float32(x) for x in (-0.4, 0.0, 0.4, 0.8))
_MORE_SIGNED_CODES = tuple(np.float32(x / 2) for x in range(-6, 7))
_REFINEMENTS = 2


@dataclass(frozen=True)
class Scaled:
    """Numbers in units of a power of two, below 2.

    Attributes:
        x: f32[group_size, ...].
        weights: f32[group_size, ...].
        unit: f32[...], powers of two; 0 where all numbers are tiny.
        inverse: f32[...], their reciprocals, or 0.
    """

    x: Floats
    weights: Floats
    unit: Floats
    inverse: Floats


@dataclass(frozen=True)
class Fit:
    """Number = scale * code + base, and its sum of weighted squared errors: f32[...] each."""

    scale: Floats
    base: Floats
    error: Floats

    def better_of(self, other: "Fit") -> "Fit":
        """Take `other` where its error is smaller."""
        is_better = other.error < self.error
        return Fit(
            np.where(is_better, other.scale, self.scale),
            np.where(is_better, other.base, self.base),
            np.where(is_better, other.error, self.error),
        )


def summed(terms: npt.NDArray[Number], shape: tuple[int, ...]) -> npt.NDArray[Number]:
    """Add arrays of this shape sequentially, in their own precision."""
    total = np.zeros(shape, terms.dtype)
    for term in terms:
        total += term
    return total


def in_range(values: Floats, weights: Floats, group_size: int) -> Scaled:
    """Split blocks, f32[num_blocks, block_size], into groups, in units of each block's range.

    Returns:
        Arrays f32[group_size, num_blocks, groups]; units f32[num_blocks, 1].
    """
    largest = np.abs(values).max(axis=-1, keepdims=True)
    exponents = largest.view(np.uint32) >> 23
    is_tiny = largest < _TINY
    unit = np.where(is_tiny, _ZERO, (exponents << 23).view(np.float32))
    inverse = np.where(is_tiny, _ZERO, ((254 - exponents) << 23).view(np.float32))
    shape = (len(values), -1, group_size)
    x = np.moveaxis((values * inverse).reshape(shape), -1, 0)
    return Scaled(
        np.ascontiguousarray(x),
        np.ascontiguousarray(np.moveaxis(weights.reshape(shape), -1, 0)),
        unit,
        inverse,
    )


def round_scale(scale: Floats, scaled: Scaled) -> tuple[Halves, Floats]:
    """Round scales to halves; return these, and their values in units of the range."""
    whole = np.clip(scale * scaled.unit, np.float32(-MAX_HALF), np.float32(MAX_HALF))
    half = whole.astype("<f2")
    return half, half.astype(np.float32) * scaled.inverse


def inverse_steps(step: Floats) -> Floats:
    """Invert steps; 0 for steps that are negligible for numbers of size 1."""
    return np.where(np.abs(step) > _TINY, np.float32(1) / step, _ZERO)


def nearest_whole(values: Floats, low: float, high: float) -> Floats:
    """Round to the nearest whole number in [low, high], ties to even."""
    clipped = np.where(values < np.float32(low), np.float32(low), values)
    clipped = np.where(clipped > np.float32(high), np.float32(high), clipped)
    return (clipped + _WHOLE) - _WHOLE


def nearest_codes(x: Floats, base: Floats, inverse: Floats, low: float, high: float) -> Floats:
    """Return the nearest codes in [low, high]: f32[group_size, ...]."""
    return nearest_whole((x - base) * inverse, low, high)


def with_error(scaled: Scaled, codes: Floats, scale: Floats, base: Floats) -> Fit:
    """Return a fit with the error of these codes."""
    off = (scale * codes + base) - scaled.x
    return Fit(scale, base, summed(scaled.weights * off * off, scale.shape))


def no_fit(shape: tuple[int, ...]) -> Fit:
    """Return a fit worse than any other."""
    zeros = np.zeros(shape, np.float32)
    return Fit(zeros, zeros, np.full(shape, np.finfo(np.float32).max))


def _fit_to_codes(
    scaled: Scaled, codes: Floats, weights: Floats, numbers: Floats, *, is_bounded: bool
) -> Fit:
    """Fit scale and base by least squares; a bounded base is at most 0."""
    weighted = scaled.weights * codes
    total = summed(weighted, weights.shape)
    squares = summed(weighted * codes, weights.shape)
    products = summed(weighted * scaled.x, weights.shape)
    spread = weights * squares - total * total
    scale = np.where(spread > 0, (weights * products - numbers * total) / spread, _ZERO)
    base = np.where(spread > 0, (squares * numbers - total * products) / spread, numbers / weights)
    if is_bounded:
        alone = np.where(squares > 0, products / squares, _ZERO)
        scale = np.where(base > 0, alone, scale)
        base = np.where(base > 0, _ZERO, base)
    return with_error(scaled, codes, np.where(scale < 0, _ZERO, scale), base)


def fit_offset(scaled: Scaled, last: int, *, is_bounded: bool) -> tuple[Fit, Floats, Floats]:
    """Find scales and bases for codes 0 to `last`.

    Args:
        is_bounded: bases are at most 0.

    Returns:
        The fit, the sum of weights, and that of weights times numbers: f32[...].
    """
    shape = scaled.x.shape[1:]
    weights = summed(scaled.weights, shape)
    numbers = summed(scaled.weights * scaled.x, shape)
    low, high = scaled.x.min(axis=0), scaled.x.max(axis=0)
    if is_bounded:
        low = np.where(low > 0, _ZERO, low)
    span = high - low
    unit, inverse = span / np.float32(last), inverse_steps(span)

    def tried(base: Floats, inverse: Floats) -> Fit:
        codes = nearest_codes(scaled.x, base, inverse, 0, last)
        return _fit_to_codes(scaled, codes, weights, numbers, is_bounded=is_bounded)

    best = no_fit(shape)
    for first in _FIRST_CODES:
        for more in _MORE_CODES:
            best = best.better_of(tried(low + unit * first, inverse * (np.float32(last) + more)))
    for _ in range(_REFINEMENTS):
        best = best.better_of(tried(best.base, inverse_steps(best.scale)))
    return best, weights, numbers


def fit_signed(scaled: Scaled, low: int, high: int) -> Fit:
    """Find scales of either sign for codes from `low` to `high`; bases are 0.

    The number of largest magnitude, the first of equals, gets about the code `low`.
    """
    shape = scaled.x.shape[1:]
    place = np.abs(scaled.x).argmax(axis=0)[np.newaxis]
    inverse = inverse_steps(np.take_along_axis(scaled.x, place, axis=0)[0])
    no_base = np.zeros(shape, np.float32)

    def tried(inverse: Floats) -> Fit:
        codes = nearest_codes(scaled.x, no_base, inverse, low, high)
        weighted = scaled.weights * codes
        squares = summed(weighted * codes, shape)
        products = summed(weighted * scaled.x, shape)
        scale = np.where(squares > 0, products / squares, _ZERO)
        return with_error(scaled, codes, scale, no_base)

    best = no_fit(shape)
    for more in _MORE_SIGNED_CODES:
        best = best.better_of(tried(inverse * (np.float32(low) - more)))
    for _ in range(_REFINEMENTS):
        best = best.better_of(tried(inverse_steps(best.scale)))
    return best
