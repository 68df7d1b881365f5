"""Encoders of blocks of 32 elements for weighted errors.

`fit_signed` and `fit_offset` find the scale (and base) of a block, which is rounded to a half;
codes are the nearest ones. Operations and their order are those of
cpp/kernels/isa/shared/encode_weighted-inl.h.
"""

import numpy as np

from powerinfer.quant.formats._blocks import Bytes, Floats, code_bytes
from powerinfer.quant.formats._search import (
    fit_offset,
    fit_signed,
    in_range,
    inverse_steps,
    nearest_codes,
    round_scale,
)

__all__ = ["encode_offset_weighted", "encode_signed_weighted"]


def encode_signed_weighted(values: Floats, weights: Floats, bits: int) -> Bytes:
    """Encode f32[num_blocks, 32] as a half and signed codes of 4, 5 or 8 bits."""
    half = 1 << (bits - 1)
    low = -127 if bits == 8 else -half
    scaled = in_range(values, weights, 32)
    fit = fit_signed(scaled, low, half - 1)
    stored, d = round_scale(fit.scale, scaled)
    codes = nearest_codes(scaled.x, np.zeros_like(d), inverse_steps(d), low, half - 1)[:, :, 0].T
    packed = codes.astype(np.int8).view(np.uint8) if bits == 8 else code_bytes(codes + half, bits)
    return np.concatenate([stored.view(np.uint8), packed], axis=-1)


def encode_offset_weighted(values: Floats, weights: Floats, bits: int) -> Bytes:
    """Encode f32[num_blocks, 32] as two halves, scale and base, and codes of 4 or 5 bits."""
    last = (1 << bits) - 1
    scaled = in_range(values, weights, 32)
    fit, _, _ = fit_offset(scaled, last, is_bounded=False)
    stored, d = round_scale(fit.scale, scaled)
    stored_base, base = round_scale(fit.base, scaled)
    codes = nearest_codes(scaled.x, base, inverse_steps(d), 0, last)[:, :, 0].T
    halves = [stored.view(np.uint8), stored_base.view(np.uint8)]
    return np.concatenate([*halves, code_bytes(codes, bits)], axis=-1)
