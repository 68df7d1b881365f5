"""Encoders of Q4_K and Q5_K: eight groups of 32 elements whose 6-bit scales and minima share units.

`fit_offset` finds scale and base of every group. The largest scale of a block is 63 units d, the
lowest base 63 units dmin. Of the stored scales around the one found, and for each the minimum that
fits its codes best, the group takes those with the smallest error, and then the nearest codes.
Operations and their order are those of cpp/kernels/isa/shared/encode_k-inl.h.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

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
"""Largest magnitude that Q4_K and Q5_K hold: of the lowest minimum."""

_LAST = 63
_STEPS = tuple(np.float32(x) for x in (-1, 0, 1))
_ZERO = np.float32(0)


def unweighted(encode: Callable[[Floats, Floats], Bytes]) -> Callable[[Floats], Bytes]:
    """Return an encoder of blocks for weights that are all 1."""
    return lambda values: encode(values, np.ones_like(values))


@dataclass(frozen=True)
class StoredBlocks:
    """What blocks of eight groups hold, before it is packed.

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


def encode_offset_groups(values: Floats, weights: Floats, last: int) -> StoredBlocks:
    """Choose scales, minima and codes from 0 to `last` for f32[num_blocks, 256]."""
    scaled = in_range(values, weights, 32)
    fit, sum_weights, sum_numbers = fit_offset(scaled, last, is_bounded=True)
    largest = np.maximum(fit.scale.max(axis=-1, keepdims=True), _ZERO)
    lowest = np.minimum(fit.base.min(axis=-1, keepdims=True), _ZERO)
    d_half, d = round_scale(largest / np.float32(_LAST), scaled)
    dmin_half, dmin = round_scale((_ZERO - lowest) / np.float32(_LAST), scaled)
    best = no_fit(fit.scale.shape)
    for step in _STEPS:
        scales = nearest_whole(
            nearest_whole(fit.scale * inverse_steps(d), 0, _LAST) + step, 0, _LAST
        )
        codes = nearest_codes(scaled.x, fit.base, inverse_steps(d * scales), 0, last)
        total = summed(scaled.weights * codes, scales.shape)
        above = (d * scales * total - sum_numbers) / sum_weights * inverse_steps(dmin)
        best = best.better_of(
            _stored(scaled, (d, dmin), scales, nearest_whole(above, 0, _LAST), last)
        )
    codes = nearest_codes(
        scaled.x, _ZERO - dmin * best.base, inverse_steps(d * best.scale), 0, last
    )
    return StoredBlocks(
        np.concatenate([d_half, dmin_half], axis=-1),
        best.scale.astype(np.uint8),
        best.base.astype(np.uint8),
        np.moveaxis(codes, 0, -1).astype(np.uint8),
    )


def _stored(
    scaled: Scaled, units: tuple[Floats, Floats], scales: Floats, minima: Floats, last: int
) -> Fit:
    """The error with these scales and minima, which take the places of scale and base."""
    d, dmin = units
    base = _ZERO - dmin * minima
    codes = nearest_codes(scaled.x, base, inverse_steps(d * scales), 0, last)
    return Fit(scales, minima, with_error(scaled, codes, d * scales, base).error)


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
        step: of the chosen scales: f32[num_blocks, groups].
        low: the lowest number that codes reach: as `step`.
        high: the highest one: as `step`.

    Returns:
        As `values`.
    """
    step, low, high = (x[..., np.newaxis] for x in (np.abs(step), low, high))
    error = np.maximum(np.maximum(low - values, values - high), step / 2)
    # The roundings of places and of decoded numbers.
    size = np.maximum(np.abs(values), np.maximum(np.abs(low), np.abs(high)))
    bound: Floats = error + size * np.float32(2.0**-20)
    return bound
