"""Rotary positions of a `config.json` written by transformers 4 or 5.

Version 5 has one object, `rope_parameters`, or one per layer type; version 4 has `rope_theta`,
`rope_scaling` and `partial_rotary_factor` side by side.
"""

import math

import numpy as np

from powerinfer.gguf import keys
from powerinfer.models.architecture import Architecture, Rotation
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.rope import RopeScaling
from powerinfer.values import FloatArray

__all__ = ["rope_divisors", "rope_metadata"]

_TYPES = ("default", "linear", "llama3", "yarn", "proportional")
# Divides the frequency of pairs that do not rotate: their angle is 0 at every position.
_STILL = 1e30
_FULL, _WINDOW = "full_attention", "sliding_attention"


def rope_metadata(
    config: CheckpointConfig, architecture: Architecture, head_dim: int
) -> dict[str, object]:
    """Metadata of the rotation, without the architecture's prefix; none for models without it.

    Raises:
        UnsupportedError: unsupported scaling.
        CheckpointError: a value is missing or has the wrong type.
    """
    if architecture.position_offset is not None or architecture.rotation is Rotation.NEVER:
        return {}
    parameters = _parameters(config)
    base = _base(config, parameters, architecture)
    found: dict[str, object] = {
        keys.ROPE_FREQUENCY_BASE: base,
        keys.ROPE_DIMENSION_COUNT: _rotary_dim(config, architecture, head_dim),
    }
    kind = _kind(parameters)
    if kind == "linear":
        found[keys.ROPE_SCALING_TYPE] = RopeScaling.LINEAR.value
        found[keys.ROPE_SCALING_FACTOR] = parameters.number("factor")
    elif kind == "yarn":
        found |= _yarn(config, parameters, architecture)
    return found | _window_base(config, architecture)


def rope_divisors(
    config: CheckpointConfig, architecture: Architecture, head_dim: int
) -> FloatArray | None:
    """Frequency divisors: f32[rotary_dim // 2]; None for models without.

    Llama 3.1 and later divide long waves by the factor and keep short ones, with a ramp in between.
    Gemma 4 rotates the first pairs only, as those of a head of the full width.
    """
    parameters = _parameters(config)
    if _kind(parameters) == "proportional":
        share = parameters.number("partial_rotary_factor", 1.0)
        pairs = np.arange(head_dim // 2)
        return np.where(pairs < int(share * head_dim // 2), 1.0, _STILL).astype(np.float32)
    is_off = architecture.position_offset is not None or architecture.rotation is Rotation.NEVER
    if is_off or _kind(parameters) != "llama3":
        return None
    base = _base(config, parameters, architecture)
    rotary_dim = _rotary_dim(config, architecture, head_dim)
    original = _original_context(config, parameters)
    wavelengths = 2.0 * math.pi * base ** (np.arange(0, rotary_dim, 2) / rotary_dim)
    low = parameters.number("low_freq_factor", 1.0)
    high = parameters.number("high_freq_factor", 4.0)
    factor = parameters.number("factor")
    if not 0.0 < low < high or not 1.0 <= factor < 1e6 or not 1.0 <= base < 1e12:
        raise parameters.error("low_freq_factor", f"expected one below high_freq_factor {high:g}")
    kept = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / (kept + (1.0 - kept) / factor)).astype(np.float32)


def _parameters(config: CheckpointConfig, layers: str = _FULL) -> CheckpointConfig:
    """Parameters of one layer type."""
    parameters = config.part("rope_parameters")
    if not parameters.values:
        return config.part("rope_scaling")
    return parameters.part(layers) if parameters.has(_FULL) else parameters


def _kind(parameters: CheckpointConfig) -> str:
    key = "rope_type" if parameters.has("rope_type") else "type"
    kind = parameters.string(key, "default")
    if kind not in _TYPES:
        raise parameters.unsupported(key, ", ".join(_TYPES))
    return kind


def _base(
    config: CheckpointConfig, parameters: CheckpointConfig, architecture: Architecture
) -> float:
    default = config.number("rope_theta", architecture.checkpoint.rope_base)
    return parameters.number("rope_theta", default)


def _rotary_dim(config: CheckpointConfig, architecture: Architecture, head_dim: int) -> int:
    default = config.number("partial_rotary_factor", architecture.checkpoint.rotary_share)
    share = _parameters(config).number("partial_rotary_factor", default)
    if not 0.0 < share <= 1.0:
        raise config.error("partial_rotary_factor", "expected a number above 0, at most 1")
    rotary_dim = int(head_dim * share)
    if architecture.is_rope_interleaved and rotary_dim != head_dim:
        raise config.unsupported("partial_rotary_factor", f"1 in {architecture.name} models")
    return rotary_dim


def _yarn(
    config: CheckpointConfig, parameters: CheckpointConfig, architecture: Architecture
) -> dict[str, object]:
    # Files have no key for rounding the borders of the ramp.
    if parameters.flag("truncate", default=True) != architecture.rounds_yarn_ramp:
        wanted = str(architecture.rounds_yarn_ramp).lower()
        raise parameters.unsupported("truncate", f"{wanted} in {architecture.name} models")
    original = _original_context(config, parameters)
    factor = parameters.number("factor", config.integer("max_position_embeddings") / original)
    if not 0.0 < factor < 1e6:
        raise parameters.error("factor", "expected a number above 0, below a million")
    found: dict[str, object] = {
        keys.ROPE_SCALING_TYPE: RopeScaling.YARN.value,
        keys.ROPE_SCALING_FACTOR: factor,
        keys.ROPE_SCALING_ORIGINAL_CONTEXT: original,
    }
    usual = _magnitude(factor, 1.0)
    magnitude = parameters.number("attention_factor", _default_magnitude(parameters, factor))
    if magnitude != usual:
        # The engine always multiplies by the usual magnitude.
        found[keys.ROPE_SCALING_ATTENTION_FACTOR] = magnitude / usual
    for name, key, default in (
        ("beta_fast", keys.ROPE_YARN_BETA_FAST, 32.0),
        ("beta_slow", keys.ROPE_YARN_BETA_SLOW, 1.0),
    ):
        value = parameters.number(name, default) or default
        if value != default:
            found[key] = value
    return found


def _default_magnitude(parameters: CheckpointConfig, factor: float) -> float:
    scale = parameters.number("mscale", 0.0)
    divisor = parameters.number("mscale_all_dim", 0.0)
    if scale and divisor:
        return _magnitude(factor, scale) / _magnitude(factor, divisor)
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _original_context(config: CheckpointConfig, parameters: CheckpointConfig) -> int:
    default = config.integer("max_position_embeddings")
    default = config.integer("original_max_position_embeddings", default)
    return parameters.integer("original_max_position_embeddings", default)


def _window_base(config: CheckpointConfig, architecture: Architecture) -> dict[str, object]:
    """Frequency base of layers with a window, in families that have one."""
    default = architecture.windows.window_freq_base
    if default is None:
        return {}
    base = config.number("rope_local_base_freq", default)
    parameters = _parameters(config, _WINDOW)
    if config.part("rope_parameters").has(_WINDOW):
        if _kind(parameters) != "default":
            raise parameters.unsupported("rope_type", f"default of {_WINDOW} layers")
        base = parameters.number("rope_theta", base)
    return {keys.ROPE_FREQUENCY_BASE_SWA: base}
