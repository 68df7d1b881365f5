"""Arguments of launchers besides tensors: a layer's paged cache, a step's batch, the softmax."""

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

__all__ = ["Angles", "PagedCache", "PlacedBatch", "Softmax"]

Angles: TypeAlias = tuple[Tensor, Tensor, bool]
"""cos and sin, f32[context_length, rotary_dim / 2] each, and whether pairs are interleaved."""


@dataclass(frozen=True, slots=True)
class Softmax:
    """Constants of the softmax; see `powerinfer.ops.protocol.Ops.attention`.

    Attributes:
        window: positions that a token sees, or None for all.
        sinks: f32[num_heads] or None.
        soft_cap: of the scaled products, or None.
    """

    scale: float
    window: int | None = None
    sinks: Tensor | None = None
    soft_cap: float | None = None

    @property
    def factors(self) -> tuple[float, float]:
        """Factor of products and cap of the result, in base 2."""
        if self.soft_cap is None:
            return self.scale, 0.0
        return self.scale / self.soft_cap, self.soft_cap * math.log2(math.e)


class PagedCache(Protocol):
    """Keys and values of one layer: `powerinfer.ops.gpu.cache.DeviceKV`, which says more."""

    @property
    def keys(self) -> Tensor:
        """f16 or i8[num_blocks, block_size, num_kv_heads, head_dim]."""
        ...

    @property
    def values(self) -> Tensor:
        """The same."""
        ...

    @property
    def key_scales(self) -> Tensor:
        """f16[num_blocks, block_size, num_kv_heads, head_dim / 32]; empty where keys are f16."""
        ...

    @property
    def value_scales(self) -> Tensor:
        """The same."""
        ...

    @property
    def block_size(self) -> int:
        """Positions in one block."""
        ...

    @property
    def num_kv_heads(self) -> int:
        """Heads of the keys."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        ...

    @property
    def is_q8(self) -> bool:
        """True if the elements are codes with scales."""
        ...

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys, values and their scales."""
        ...


class PlacedBatch(Protocol):
    """Positions of the tokens of a step: `powerinfer.ops.gpu.cache.DeviceBatch`."""

    @property
    def positions(self) -> Tensor:
        """i32[num_tokens]."""
        ...

    @property
    def sequences(self) -> Tensor:
        """i32[num_tokens]."""
        ...

    @property
    def block_tables(self) -> Tensor:
        """i32[num_sequences, width]."""
        ...

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor]:
        """The three of them."""
        ...

    @property
    def tiles(self) -> Tensor:
        """i32[num_tiles, QUERY_TILE]: tokens in tiles of one sequence each, -1 unused."""
        ...
