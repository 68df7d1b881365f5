"""Attention settings of each layer: visible positions and their rotation.

Most models treat all layers alike. Gemma 3, gpt-oss and SmallThinker alternate layers with a
sliding window and layers without.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import keys
from powerinfer.models.metadata import Metadata
from powerinfer.models.rope import RopeConfig, RopeScaling, build_rope_table
from powerinfer.models.scales import Scales
from powerinfer.ops.protocol import RopeTable
from powerinfer.values import FloatArray

__all__ = [
    "AttentionOptions",
    "LayerAttention",
    "WindowPattern",
    "attention_options",
    "read_attention",
]

_MAX_WINDOW = 1 << 31


@dataclass(frozen=True, slots=True)
class WindowPattern:
    """Pattern of layers with a window in a family, for files that have one, and their rotation.

    Attributes:
        period: one in `period` layers has no window; 0: all have one.
        is_global_first: the layer without a window is the first of a period, else the last.
        has_global_rope: layers without a window rotate.
        window_freq_base: default frequency base of layers with a window, whose angles are then
            never scaled; None if they rotate like the others.
    """

    period: int = 0
    is_global_first: bool = False
    has_global_rope: bool = True
    window_freq_base: float | None = None

    def flags(self, num_layers: int, period: int | None = None) -> list[bool]:
        """Flag each layer that has a window, by the file's period or else the family's."""
        period = self.period if period is None else period
        if not period:
            return [True] * num_layers
        first = 0 if self.is_global_first else period - 1
        return [number % period != first for number in range(num_layers)]


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """Attention settings of one layer; without a window it sees all positions."""

    window: int | None
    rope: RopeConfig | None

    def num_attended(self, seq_len: int) -> int:
        """Number of positions that the last of `seq_len` tokens sees, itself included."""
        return min(seq_len, self.window or seq_len)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Attention settings of one layer, prepared for a backend.

    Attributes:
        rope: table of angles, or None for a layer that does not rotate.
        soft_cap: scores s become cap * tanh(s / cap); None for no cap.
    """

    rope: RopeTable | None
    scale: float
    window: int | None
    soft_cap: float | None


def read_attention(
    metadata: Metadata, pattern: WindowPattern, rope: RopeConfig | None, num_layers: int
) -> tuple[LayerAttention, ...]:
    """Read the keys of windows.

    Raises:
        GGUFError: a value has the wrong type or is out of range.
    """
    window = metadata.integer(keys.SLIDING_WINDOW, default=0, low=0, high=_MAX_WINDOW)
    if not window:
        return (LayerAttention(None, rope),) * num_layers
    windowed = LayerAttention(window, _rope_of_windows(metadata, pattern, rope))
    everything = LayerAttention(None, rope if pattern.has_global_rope else None)
    flags = _are_windowed(metadata, pattern, num_layers)
    return tuple(windowed if flag else everything for flag in flags)


def _rope_of_windows(
    metadata: Metadata, pattern: WindowPattern, rope: RopeConfig | None
) -> RopeConfig | None:
    if rope is None:
        return None
    own = pattern.window_freq_base
    base = metadata.number(
        keys.ROPE_FREQUENCY_BASE_SWA, default=rope.freq_base if own is None else own, low=1.0
    )
    if own is None:
        return replace(rope, freq_base=base)
    return replace(rope, freq_base=base, scaling=RopeScaling.NONE, factor=1.0)


def _are_windowed(
    metadata: Metadata, pattern: WindowPattern, num_layers: int
) -> npt.NDArray[np.bool_]:
    """bool[num_layers], from one flag per layer or from a period."""
    key = metadata.key(keys.SLIDING_WINDOW_PATTERN)
    if isinstance(metadata.file.metadata.get(key), np.ndarray | list):
        flags = metadata.file.get_array(key)
        if flags.shape != (num_layers,):
            raise metadata.error(
                key, f"has {flags.size} flags; expected one for each of {num_layers} layers"
            )
        return flags.astype(bool)
    period = metadata.integer(keys.SLIDING_WINDOW_PATTERN, default=pattern.period, low=0)
    return np.array(pattern.flags(num_layers, period))


def attention_options(
    layers: Sequence[LayerAttention],
    scales: Scales,
    context_length: int,
    divisors: FloatArray | None = None,
) -> tuple[AttentionOptions, ...]:
    """Prepare each layer's settings; layers with the same rotation share a table of angles.

    Args:
        divisors: f32[rotary_dim // 2] of `rope_freqs.weight`, which divide the frequencies.
    """
    ropes = {layer.rope for layer in layers if layer.rope is not None}
    tables = {rope: build_rope_table(rope, context_length, divisors) for rope in ropes}
    return tuple(
        AttentionOptions(
            rope=None if layer.rope is None else tables[layer.rope],
            scale=scales.attention,
            window=layer.window,
            soft_cap=scales.attention_soft_cap,
        )
        for layer in layers
    )
