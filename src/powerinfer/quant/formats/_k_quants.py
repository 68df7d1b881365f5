"""Q4_K and Q5_K: eight groups of 32 elements whose 6-bit scales and minima share units.

Encoder: `fit_offset` finds scale and base of every group. The largest scale of a block is 63 units
d, the lowest base 63 units dmin. Each group tries the neighbouring stored scales, each with the
minimum that fits its codes best, takes the one with the smallest error, and then the nearest codes.
Twice, d and dmin are fitted to codes, scales and minima by least squares, and these are chosen
again; a block keeps the choice with the smallest error. Operations and their order are those of
cpp/kernels/isa/shared/encode_k-inl.h.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from powerinfer.quant.format import QuantFormat
from powerinfer.quant.formats._blocks import (
    MAX_HALF,
    Bytes,
    Floats,
    halves,
    nibble_pairs,
    packed_scales,
)
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

__all__ = ["Choice", "bound_of", "offset_groups_format", "unweighted"]

_GROUPS = 8
_GROUP_BITS = np.arange(_GROUPS, dtype=np.uint8)[:, None]
_LAST = 63
_STEPS = tuple(np.float32(x) for x in (-1, 0, 1))
_ZERO = np.float32(0)
_UNIT_FITS = 2
_LEAST_SPREAD = 1e-9


def unweighted(encode: Callable[[Floats, Floats], Bytes]) -> Callable[[Floats], Bytes]:
    """Return an encoder of blocks with all weights 1."""
    return lambda values: encode(values, np.ones_like(values))


def offset_groups_format(name: str, ggml_type: int, bits: int) -> QuantFormat:
    """Make a format of codes of 4 or 5 bits: the number is d * scale * code - dmin * minimum."""
    encode = partial(_encode, bits=bits)
    return QuantFormat(
        name,
        ggml_type,
        block_size=256,
        block_bytes=16 + 32 * bits,
        decode_blocks=partial(_decode, bits=bits),
        encode_blocks=unweighted(encode),
        bound_blocks=partial(_bound, bits=bits),
        encode_weighted=encode,
        # The magnitude of the lowest minimum.
        encode_limit=_LAST * MAX_HALF,
    )


def _decode(blocks: Bytes, bits: int) -> Floats:
    scales, minima = packed_scales(blocks, 4)
    step = halves(blocks, 0) * scales.astype(np.float32)
    base = halves(blocks, 2) * minima.astype(np.float32)
    codes = nibble_pairs(blocks[:, -128:].reshape(-1, 4, 32)).reshape(-1, _GROUPS, 32)
    if bits == 5:
        codes |= (blocks[:, None, 16:48] >> _GROUP_BITS & 1) << 4
    numbers = step[:, :, None] * codes.astype(np.float32) - base[:, :, None]
    return numbers.reshape(-1, 256)


@dataclass(frozen=True)
class _Groups:
    """Groups fitted without rounding their scales: f32[num_blocks, 8] each."""

    scaled: Scaled
    fit: Fit
    weights: Floats
    numbers: Floats
    last: int


@dataclass(frozen=True)
class Choice:
    """Units of blocks, scales and minima of their groups, codes of elements, and errors.

    Attributes:
        halves: d, and dmin if there are minima, f16[num_blocks, 1 or 2].
        scales: whole numbers, f32[num_blocks, groups].
        minima: f32[num_blocks, groups].
        codes: f32[group_size, num_blocks, groups].
        error: sum of weighted squared errors, f64[num_blocks].
    """

    halves: Halves
    scales: Floats
    minima: Floats
    codes: Floats
    error: npt.NDArray[np.float64]

    def better_of(self, other: "Choice") -> "Choice":
        """Take `other` for the blocks where its error is smaller."""
        is_better = other.error < self.error
        by_row = is_better[:, np.newaxis]
        return Choice(
            np.where(by_row, other.halves, self.halves),
            np.where(by_row, other.scales, self.scales),
            np.where(by_row, other.minima, self.minima),
            np.where(by_row, other.codes, self.codes),
            np.where(is_better, other.error, self.error),
        )


def _best(values: Floats, weights: Floats, bits: int) -> Choice:
    last = (1 << bits) - 1
    scaled = in_range(values, weights, 32)
    fit, sum_weights, sum_numbers = fit_offset(scaled, last, is_bounded=True)
    groups = _Groups(scaled, fit, sum_weights, sum_numbers, last)
    largest = np.maximum(fit.scale.max(axis=-1, keepdims=True), _ZERO)
    lowest = np.minimum(fit.base.min(axis=-1, keepdims=True), _ZERO)
    units = (largest / np.float32(_LAST), (_ZERO - lowest) / np.float32(_LAST))
    best = choice = _choose(groups, *units)
    for _ in range(_UNIT_FITS):
        choice = _choose(groups, *_fitted_units(groups, choice))
        best = best.better_of(choice)
    return best


def _choose(groups: _Groups, unit: Floats, minimum_unit: Floats) -> Choice:
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
    units = np.concatenate([d_half, dmin_half], axis=-1)
    return Choice(units, best.scale, best.base, codes, of_blocks)


def _codes(groups: _Groups, scale: Floats, minimum: Floats) -> Floats:
    return nearest_codes(groups.scaled.x, _ZERO - minimum, inverse_steps(scale), 0, groups.last)


def _fitted_units(groups: _Groups, choice: Choice) -> tuple[Floats, Floats]:
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


def _encode(values: Floats, weights: Floats, bits: int) -> Bytes:
    best = _best(values, weights, bits)
    scales, minima = best.scales.astype(np.uint8), best.minima.astype(np.uint8)
    codes = np.moveaxis(best.codes, 0, -1).astype(np.uint8)
    parts = [
        np.ascontiguousarray(best.halves).view(np.uint8),
        # As `packed_scales` reads them.
        scales[:, :4] | scales[:, 4:] >> 4 << 6,
        minima[:, :4] | minima[:, 4:] >> 4 << 6,
        (scales[:, 4:] & 15) | minima[:, 4:] << 4,
    ]
    if bits == 5:
        parts.append(np.packbits(codes >> 4, axis=1, bitorder="little").reshape(-1, 32))
        codes &= np.uint8(15)
    parts.append((codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)).reshape(-1, 128))
    return np.concatenate(parts, axis=-1)


def _bound(values: Floats, bits: int) -> Floats:
    """Half a step of the scales chosen without weights, or the distance from what codes reach."""
    best = _best(values, np.ones_like(values), bits)
    units = best.halves.astype(np.float32)
    step = units[:, :1] * best.scales
    low = -(units[:, 1:] * best.minima)
    high = low + step * np.float32((1 << bits) - 1)
    return bound_of(values.reshape(-1, _GROUPS, 32), step, low, high).reshape(values.shape)


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
