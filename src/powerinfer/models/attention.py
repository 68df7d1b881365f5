"""How each layer attends: which positions it sees and how they are rotated.

Most models treat all layers alike. Gemma 3, gpt-oss and SmallThinker alternate layers that look
through a window of positions with layers that see everything.
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
    """Which layers of a family have a window, in files that give one, and how they rotate.

    Attributes:
        period: one of `period` layers in a row sees everything; 0: none does.
        is_global_first: it is the first of them, else the last.
        has_global_rope: it rotates; if not, only layers with a window do.
        window_freq_base: base of the layers with a window where the file has no key for it, whose
            angles are then never scaled; None if they rotate as the others do.
    """

    period: int = 0
    is_global_first: bool = False
    has_global_rope: bool = True
    window_freq_base: float | None = None

    def flags(self, num_layers: int, period: int | None = None) -> list[bool]:
        """Whether each layer has a window.

        Args:
            num_layers: entries of the result.
            period: of a file that has its own; None for that of the family.
        """
        period = self.period if period is None else period
        if not period:
            return [True] * num_layers
        first = 0 if self.is_global_first else period - 1
        return [number % period != first for number in range(num_layers)]


@dataclass(frozen=True, slots=True)
class LayerAttention:
    """How one layer attends.

    Attributes:
        window: positions a token sees including itself, or None for all.
        rope: rotary embedding, or None for a layer without.
    """

    window: int | None
    rope: RopeConfig | None

    def num_attended(self, seq_len: int) -> int:
        """Positions that the last of `seq_len` tokens sees, itself included."""
        return min(seq_len, self.window or seq_len)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The same for the operations of a backend, for `blocks.attention_block`.

    Attributes:
        rope: angles, or None for a layer that does not rotate.
        scale: of scores.
        window: as of `LayerAttention`.
        soft_cap: scores s become cap * tanh(s / cap); None: they stay.
    """

    rope: RopeTable | None
    scale: float
    window: int | None
    soft_cap: float | None


def read_attention(
    metadata: Metadata, pattern: WindowPattern, rope: RopeConfig | None, num_layers: int
) -> tuple[LayerAttention, ...]:
    """Read the keys of windows.

    Args:
        metadata: of the file.
        pattern: of the family.
        rope: what the `rope.*` keys say.
        num_layers: entries of the result.

    Raises:
        GGUFError: a value is of the wrong type or out of range.
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
    """bool[num_layers]: by one flag per layer, or by a period."""
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
    """Prepare each layer's options; layers that rotate alike share a table of angles.

    Args:
        layers: how they attend.
        scales: the model's.
        context_length: positions to make room for.
        divisors: f32[rotary_dim // 2] of `rope_freqs.weight`, by which frequencies are divided.
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
