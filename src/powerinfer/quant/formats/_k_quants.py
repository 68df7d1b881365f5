"""Encoders of Q4_K and Q5_K: eight groups of 32 elements whose 6-bit scales and minima share units.

`fit_offset` finds scale and base of every group. The largest scale of a block is 63 units d, the
lowest base 63 units dmin. Each group tries the neighbouring stored scales, each with the minimum
that fits its codes best, takes the one with the smallest error, and then the nearest codes. Twice,
d and dmin are fitted to codes, scales and minima by least squares, and these are chosen again; a
block keeps the choice with the smallest error. Operations and their order are those of
cpp/kernels/isa/shared/encode_k-inl.h.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.quant.formats._blocks import MAX_HALF, Bytes, Floats
from powerinfer.quant.formats._search import (
    Fit,
    Halves,
    Scaled,
    fit_offset,
    in_range,
    inverse_steps,
    nearest_codes,
    nearest_whole,
    no_fit,
    round_scale,
    summed,
    with_error,
)

__all__ = [
    "GROUPS",
    "OFFSET_LIMIT",
    "StoredBlocks",
    "bound_of",
    "bound_offset_groups",
    "encode_offset_groups",
    "scale_bytes",
    "unweighted",
]

GROUPS = 8
"""Groups of 32 in a block."""

OFFSET_LIMIT = 63 * MAX_HALF
"""Largest magnitude of Q4_K and Q5_K, that of the lowest minimum."""

_LAST = 63
_STEPS = tuple(np.float32(x) for x in (-1, 0, 1))
_ZERO = np.float32(0)
_UNIT_FITS = 2
_LEAST_SPREAD = 1e-9


def unweighted(encode: Callable[[Floats, Floats], Bytes]) -> Callable[[Floats], Bytes]:
    """Return an encoder of blocks with all weights 1."""
    return lambda values: encode(values, np.ones_like(values))


@dataclass(frozen=True)
class StoredBlocks:
    """Fields of blocks of eight groups, before packing.

    Attributes:
        halves: d and dmin, f16[num_blocks, 2].
        scales: u8[num_blocks, 8] below 64.
        minima: u8[num_blocks, 8] below 64.
        codes: u8[num_blocks, 8, 32].
    """

    halves: Halves
    scales: Bytes
    minima: Bytes
    codes: Bytes


@dataclass(frozen=True)
class _Groups:
    """Groups fitted without rounding their scales: f32[num_blocks, 8] each."""

    scaled: Scaled
    fit: Fit
    weights: Floats
    numbers: Floats
    last: int


@dataclass(frozen=True)
class _Choice:
    """Units, scales and minima of blocks, their codes and errors."""

    halves: Halves
    scales: Floats
    minima: Floats
    codes: Floats
    error: npt.NDArray[np.float64]


def encode_offset_groups(values: Floats, weights: Floats, last: int) -> StoredBlocks:
    """Choose scales, minima and codes from 0 to `last` for f32[num_blocks, 256]."""
    scaled = in_range(values, weights, 32)
    fit, sum_weights, sum_numbers = fit_offset(scaled, last, is_bounded=True)
    groups = _Groups(scaled, fit, sum_weights, sum_numbers, last)
    largest = np.maximum(fit.scale.max(axis=-1, keepdims=True), _ZERO)
    lowest = np.minimum(fit.base.min(axis=-1, keepdims=True), _ZERO)
    units = (largest / np.float32(_LAST), (_ZERO - lowest) / np.float32(_LAST))
    best = choice = _choose(groups, *units)
    for _ in range(_UNIT_FITS):
        choice = _choose(groups, *_fitted_units(groups, choice))
        best = _better(best, choice)
    return StoredBlocks(
        best.halves,
        best.scales.astype(np.uint8),
        best.minima.astype(np.uint8),
        np.moveaxis(best.codes, 0, -1).astype(np.uint8),
    )


def _choose(groups: _Groups, unit: Floats, minimum_unit: Floats) -> _Choice:
    """Choose scales, minima and codes for units f32[num_blocks, 1], which are rounded first."""
    scaled, fit, last = groups.scaled, groups.fit, groups.last
    d_half, d = round_scale(unit, scaled)
    dmin_half, dmin = round_scale(minimum_unit, scaled)
    nearest = nearest_whole(fit.scale * inverse_steps(d), 0, _LAST)
    best = no_fit(fit.scale.shape)
    for step in _STEPS:
        scales = nearest_whole(nearest + step, 0, _LAST)
        codes = nearest_codes(scaled.x, fit.base, inverse_steps(d * scales), 0, last)
        total = summed(scaled.weights * codes, scales.shape)
        above = (d * scales * total - groups.numbers) / groups.weights * inverse_steps(dmin)
        minima = nearest_whole(above, 0, _LAST)
        codes = _codes(groups, d * scales, dmin * minima)
        error = with_error(scaled, codes, d * scales, _ZERO - dmin * minima).error
        best = best.better_of(Fit(scales, minima, error))
    of_blocks = summed(best.error.T.astype(np.float64), (len(d),))
    codes = _codes(groups, d * best.scale, dmin * best.base)
    halves = np.concatenate([d_half, dmin_half], axis=-1)
    return _Choice(halves, best.scale, best.base, codes, of_blocks)


def _codes(groups: _Groups, scale: Floats, minimum: Floats) -> Floats:
    return nearest_codes(groups.scaled.x, _ZERO - minimum, inverse_steps(scale), 0, groups.last)


def _fitted_units(groups: _Groups, choice: _Choice) -> tuple[Floats, Floats]:
    """Fit d and dmin to codes, scales and minima by least squares: f32[num_blocks, 1] each."""
    scaled, shape = groups.scaled, choice.scales.shape
    weighted = scaled.weights * choice.codes
    total, squares, products = (
        summed(weighted * factor, shape).astype(np.float64)
        for factor in (np.float32(1), choice.codes, scaled.x)
    )
    scales, minima = choice.scales.astype(np.float64), choice.minima.astype(np.float64)
    # Number = d u - dmin v: sums of u u, u v, v v, u x and v x.
    uu, uv, vv, ux, vx = (
        summed(terms.T, shape[:1])[:, np.newaxis]
        for terms in (
            scales * scales * squares,
            scales * minima * total,
            minima * minima * groups.weights,
            scales * products,
            minima * groups.numbers,
        )
    )
    spread = uu * vv - uv * uv
    is_spread = spread > _LEAST_SPREAD * uu * vv
    d = np.where(is_spread, (ux * vv - vx * uv) / spread, np.where(uu > 0, ux / uu, 0))
    dmin = np.where(is_spread, (ux * uv - vx * uu) / spread, 0)
    return np.where(d > 0, d, 0).astype(np.float32), np.where(dmin > 0, dmin, 0).astype(np.float32)


def _better(best: _Choice, other: _Choice) -> _Choice:
    """Take `other` for the blocks where its error is smaller."""
    is_better = other.error < best.error
    by_row = is_better[:, np.newaxis]
    return _Choice(
        np.where(by_row, other.halves, best.halves),
        np.where(by_row, other.scales, best.scales),
        np.where(by_row, other.minima, best.minima),
        np.where(by_row, other.codes, best.codes),
        np.where(is_better, other.error, best.error),
    )


def scale_bytes(stored: StoredBlocks) -> Bytes:
    """Pack d, dmin, scales and minima as `packed_scales` reads them: u8[num_blocks, 16]."""
    scales, minima = stored.scales, stored.minima
    first = scales[:, :4] | scales[:, 4:] >> 4 << 6
    second = minima[:, :4] | minima[:, 4:] >> 4 << 6
    third = (scales[:, 4:] & 15) | minima[:, 4:] << 4
    halves = np.ascontiguousarray(stored.halves).view(np.uint8)
    return np.concatenate([halves, first, second, third], axis=-1)


def bound_offset_groups(values: Floats, last: int) -> Floats:
    """Bound the error of the blocks that `encode_offset_groups` makes without weights.

    Half a step of the scales it chooses, or the distance from the numbers that codes reach.
    """
    stored = encode_offset_groups(values, np.ones_like(values), last)
    halves = stored.halves.astype(np.float32)
    step = halves[:, :1] * stored.scales
    low = -(halves[:, 1:] * stored.minima)
    groups = values.reshape(-1, GROUPS, 32)
    return bound_of(groups, step, low, low + step * np.float32(last)).reshape(values.shape)


def bound_of(values: Floats, step: Floats, low: Floats, high: Floats) -> Floats:
    """Bound the error of nearest codes.

    Args:
        values: f32[num_blocks, groups, group_size].
        step: f32[num_blocks, groups], step of the codes.
        low: f32[num_blocks, groups], lowest number that codes reach.
        high: f32[num_blocks, groups], highest number that codes reach.
    """
    step, low, high = (x[..., np.newaxis] for x in (np.abs(step), low, high))
    error = np.maximum(np.maximum(low - values, values - high), step / 2)
    # The roundings of places and of decoded numbers.
    size = np.maximum(np.abs(values), np.maximum(np.abs(low), np.abs(high)))
    bound: Floats = error + size * np.float32(2.0**-20)
    return bound
