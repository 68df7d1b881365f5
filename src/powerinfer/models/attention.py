"""Attention settings of each layer: visible positions, their rotation, heads.

Most models treat all layers alike. Gemma, gpt-oss and SmallThinker alternate layers with a sliding
window and layers without; in Gemma 4 these also have heads of another width, and the last layers
read keys and values of earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import keys
from powerinfer.models.metadata import Metadata
from powerinfer.models.rope import RopeConfig, RopeScaling, build_rope_table, read_rotary_dim
from powerinfer.models.scales import Scales, Sizes
from powerinfer.ops.protocol import RopeTable
from powerinfer.values import FloatArray

__all__ = [
    "AttentionOptions",
    "LayerAttention",
    "WindowPattern",
    "attention_options",
    "read_attention",
    "read_head_dim",
    "vary_heads",
]

_MAX_WINDOW = 1 << 31
_MAX_HEAD = 1 << 20


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
    """Attention settings of one layer.

    Attributes:
        window: positions that a token sees, itself included; None for all.
        num_kv_heads: key and value heads.
        head_dim: width of a head.
        kv_layer: number of the layer whose keys and values it reads; None: its own.
    """

    window: int | None
    rope: RopeConfig | None
    num_kv_heads: int
    head_dim: int
    kv_layer: int | None = None

    @property
    def kv_size(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.num_kv_heads * self.head_dim

    def num_attended(self, seq_len: int) -> int:
        """Number of positions that the last of `seq_len` tokens sees, itself included."""
        return min(seq_len, self.window or seq_len)


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """Attention settings of one layer, prepared for a backend.

    Attributes:
        rope: table of angles, or None for a layer that does not rotate.
        head_dim: width of a head.
        soft_cap: scores s become cap * tanh(s / cap); None for no cap.
    """

    rope: RopeTable | None
    scale: float
    window: int | None
    soft_cap: float | None
    head_dim: int


def read_attention(
    metadata: Metadata, pattern: WindowPattern, rope: RopeConfig | None, sizes: Sizes
) -> tuple[LayerAttention, ...]:
    """Read the keys of windows; heads are those of `sizes`.

    Raises:
        GGUFError: a value has the wrong type or is out of range.
    """
    heads, num_layers = (sizes.num_kv_heads, sizes.head_dim), sizes.num_layers
    window = metadata.integer(keys.SLIDING_WINDOW, default=0, low=0, high=_MAX_WINDOW)
    if not window:
        return (LayerAttention(None, rope, *heads),) * num_layers
    windowed = LayerAttention(window, _rope_of_windows(metadata, pattern, rope), *heads)
    everything = LayerAttention(None, rope if pattern.has_global_rope else None, *heads)
    flags = _are_windowed(metadata, pattern, num_layers)
    return tuple(windowed if flag else everything for flag in flags)


def vary_heads(
    metadata: Metadata, layers: Sequence[LayerAttention], num_heads: int
) -> tuple[LayerAttention, ...]:
    """Read the keys of heads that differ by layer, and of layers that share keys and values.

    Raises:
        GGUFError: a value has the wrong type, is out of range or contradicts another.
    """
    # Defaults would be those of other families, and shapes could fit by chance.
    metadata.integer(keys.SLIDING_WINDOW, high=_MAX_WINDOW)
    metadata.file.get_array(metadata.key(keys.SLIDING_WINDOW_PATTERN))
    numbers = metadata.integers(
        keys.NUM_KV_HEADS, len(layers), default=layers[0].num_kv_heads, high=num_heads
    )
    wrong = next((number for number in numbers if num_heads % number), None)
    if wrong is not None:
        raise metadata.error(
            metadata.key(keys.NUM_KV_HEADS),
            f"is {wrong}; expected a divisor of the {num_heads} query heads",
        )
    width = read_head_dim(metadata, keys.HEAD_DIM_SWA, keys.VALUE_DIM_SWA, layers[0].head_dim)
    rotary_dim = read_rotary_dim(metadata, keys.ROPE_DIMENSION_COUNT_SWA, width)
    found = [
        replace(layer, num_kv_heads=number)
        if layer.window is None or layer.rope is None
        else replace(
            layer,
            num_kv_heads=number,
            head_dim=width,
            rope=replace(layer.rope, rotary_dim=rotary_dim),
        )
        for layer, number in zip(layers, numbers, strict=True)
    ]
    return _share(metadata, found)


def _share(metadata: Metadata, layers: Sequence[LayerAttention]) -> tuple[LayerAttention, ...]:
    """Let each of the last layers read the last one of its kind that has keys and values."""
    num_shared = metadata.integer(keys.NUM_SHARED_KV_LAYERS, default=0, low=0, high=len(layers) - 1)
    own, found = layers[: len(layers) - num_shared], list(layers)
    for number in range(len(own), len(layers)):
        layer = layers[number]
        same = [i for i, each in enumerate(own) if (each.window is None) == (layer.window is None)]
        if not same or own[same[-1]].num_kv_heads != layer.num_kv_heads:
            raise metadata.error(
                metadata.key(keys.NUM_SHARED_KV_LAYERS),
                f"is {num_shared}, but no earlier keys and values fit layer {number}",
            )
        found[number] = replace(layer, kv_layer=same[-1])
    return tuple(found)


def read_head_dim(metadata: Metadata, key: str, value_key: str, default: int) -> int:
    """Read the width of key heads and check that value heads are as wide.

    Raises:
        GGUFError: a value has the wrong type or is out of range.
        UnsupportedError: value heads have another width.
    """
    head_dim = metadata.integer(key, default=default, high=_MAX_HEAD)
    value_dim = metadata.integer(value_key, default=head_dim, high=_MAX_HEAD)
    if value_dim != head_dim:
        raise UnsupportedError(
            f"{metadata.file.paths[0]}: value heads of width {value_dim} with key heads of width "
            f"{head_dim} are not supported; they must be equal"
        )
    return head_dim


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
    return replace(rope, freq_base=base, scaling=RopeScaling.NONE, factor=1.0, has_divisors=False)


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
            head_dim=layer.head_dim,
        )
        for layer in layers
    )
