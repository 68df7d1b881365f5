"""Rotary position embedding: settings, scaling methods and tables of angles.

RoFormer (arXiv 2104.09864); linear scaling divides positions; YaRN (arXiv 2309.00071) divides only
the slow dimensions and scales the magnitude; Llama 3.1 files carry per-dimension divisors in
`rope_freqs.weight`.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from powerinfer import _plugins
from powerinfer.gguf import keys
from powerinfer.models.metadata import Metadata
from powerinfer.ops.protocol import RopeTable
from powerinfer.values import FloatArray

__all__ = ["RopeConfig", "RopeScaling", "build_rope_table", "read_rope", "read_rotary_dim"]

# Limits the f64 temporaries of a long context's table to a few MiB.
_POSITIONS_PER_STEP = 4096


class RopeScaling(StrEnum):
    """Scaling of angles for contexts longer than the training context."""

    NONE = "none"
    LINEAR = "linear"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Settings of the rotary embedding.

    Attributes:
        rotary_dim: leading dimensions of a head that rotate, even.
        freq_base: base of the geometric series of frequencies.
        is_interleaved: pairs are (2i, 2i+1); else (i, i + rotary_dim / 2).
        factor: ratio to the original context; 1 without scaling.
        original_context_length: context before scaling; YaRN measures wavelengths against it.
        attn_factor: extra scale of the rotated vectors.
        ext_factor: YaRN: weight of the unscaled (fast) dimensions, 1 in every known file.
        beta_fast: YaRN: dimensions with more turns than this in the original context are kept.
        beta_slow: YaRN: dimensions with fewer turns than this are divided by `factor`.
        rounds_ramp: YaRN: the ramp between the two starts and ends at whole dimensions.
        has_divisors: `rope_freqs.weight`, if the file has it, divides the frequencies.
    """

    rotary_dim: int
    freq_base: float
    is_interleaved: bool
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    original_context_length: int = 0
    attn_factor: float = 1.0
    ext_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    rounds_ramp: bool = True
    has_divisors: bool = True


def read_rope(metadata: Metadata, head_dim: int, *, is_interleaved: bool) -> RopeConfig:
    """Read the `rope.*` keys.

    Raises:
        GGUFError: a value has the wrong type or is out of range.
        UnsupportedError: unknown scaling type.
    """
    rotary_dim = read_rotary_dim(metadata, keys.ROPE_DIMENSION_COUNT, head_dim)
    # Files without the `scaling` keys have a factor for linear scaling only.
    old_factor = metadata.number(keys.ROPE_SCALE_LINEAR, default=1.0)
    factor = metadata.number(keys.ROPE_SCALING_FACTOR, default=old_factor) or 1.0
    scaling = _read_scaling(metadata, has_factor=factor != 1.0)
    context_length = metadata.integer(keys.CONTEXT_LENGTH, high=1 << 31)
    return RopeConfig(
        rotary_dim=rotary_dim,
        freq_base=metadata.number(keys.ROPE_FREQUENCY_BASE, default=10000.0, low=1.0),
        is_interleaved=is_interleaved,
        scaling=scaling,
        factor=1.0 if scaling is RopeScaling.NONE else factor,
        original_context_length=metadata.integer(
            keys.ROPE_SCALING_ORIGINAL_CONTEXT, default=context_length, high=1 << 31
        ),
        attn_factor=metadata.number(keys.ROPE_SCALING_ATTENTION_FACTOR, default=1.0, high=1e3)
        or 1.0,
        ext_factor=metadata.number(keys.ROPE_YARN_EXTRAPOLATION, default=1.0, high=1e3),
        beta_fast=metadata.number(keys.ROPE_YARN_BETA_FAST, default=32.0, high=1e6),
        beta_slow=metadata.number(keys.ROPE_YARN_BETA_SLOW, default=1.0, high=1e6),
    )


def read_rotary_dim(metadata: Metadata, key: str, head_dim: int) -> int:
    """Read the number of leading dimensions of a head that rotate.

    Raises:
        GGUFError: the value has the wrong type, is out of range or odd.
    """
    rotary_dim = metadata.integer(key, default=head_dim, high=head_dim)
    if rotary_dim % 2:
        raise metadata.error(metadata.key(key), f"is {rotary_dim}; rotation needs an even number")
    return rotary_dim


def _read_scaling(metadata: Metadata, *, has_factor: bool) -> RopeScaling:
    default = RopeScaling.LINEAR if has_factor else RopeScaling.NONE
    name = metadata.string(keys.ROPE_SCALING_TYPE, default=default.value)
    known = tuple(scaling.value for scaling in RopeScaling)
    if name not in known:
        raise _plugins.unsupported(f"{metadata.file.paths[0]}: RoPE scaling type", name, known)
    return RopeScaling(name)


def build_rope_table(
    config: RopeConfig, context_length: int, divisors: FloatArray | None = None
) -> RopeTable:
    """Compute cos and sin for every position in f64, rounded once.

    Args:
        divisors: f32[rotary_dim // 2] of `rope_freqs.weight`, which divide the frequencies.
    """
    half = config.rotary_dim // 2
    exponents = np.arange(half, dtype=np.float64) / half
    frequencies = config.freq_base**-exponents
    if divisors is not None and config.has_divisors:
        frequencies = frequencies / divisors.astype(np.float64)
    magnitude = config.attn_factor
    if config.scaling is RopeScaling.LINEAR:
        frequencies = frequencies / config.factor
    elif config.scaling is RopeScaling.YARN:
        kept = config.ext_factor * _share_kept(config)
        frequencies = frequencies / config.factor * (1.0 - kept) + frequencies * kept
        magnitude *= 1.0 + 0.1 * math.log(config.factor) if config.factor > 1.0 else 1.0
    cos = np.empty((context_length, half), np.float32)
    sin = np.empty((context_length, half), np.float32)
    for start in range(0, context_length, _POSITIONS_PER_STEP):
        end = min(start + _POSITIONS_PER_STEP, context_length)
        angles = np.arange(start, end, dtype=np.float64)[:, None] * frequencies
        cos[start:end] = np.cos(angles) * magnitude
        sin[start:end] = np.sin(angles) * magnitude
    return RopeTable(cos, sin, config.is_interleaved)


def _share_kept(config: RopeConfig) -> npt.NDArray[np.float64]:
    """Share of the frequency kept by YaRN's "NTK-by-parts", for each pair of dimensions."""
    low = _pair_that_turns(config, config.beta_fast)
    high = _pair_that_turns(config, config.beta_slow)
    if config.rounds_ramp:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(config.rotary_dim - 1.0, high)
    pairs = np.arange(config.rotary_dim // 2, dtype=np.float64)
    ramp = (pairs - low) / max(0.001, high - low)
    return 1.0 - np.clip(ramp, 0.0, 1.0)


def _pair_that_turns(config: RopeConfig, turns: float) -> float:
    """Index (a real number) of the pair with this number of turns in the original context."""
    wavelength = config.original_context_length / max(turns, 1e-6)
    return (
        config.rotary_dim
        * math.log(wavelength / (2.0 * math.pi))
        / (2.0 * math.log(max(config.freq_base, 1.0 + 1e-6)))
    )
