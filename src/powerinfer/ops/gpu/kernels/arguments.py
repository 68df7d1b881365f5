"""What launchers take besides tensors: the paged cache of a layer, and the batch of a step."""

from typing import Protocol, TypeAlias

from torch import Tensor

__all__ = ["Angles", "PagedCache", "PlacedBatch"]

Angles: TypeAlias = tuple[Tensor, Tensor, bool]
"""cos and sin, f32[context_length, rotary_dim / 2] each, and whether pairs are interleaved."""


class PagedCache(Protocol):
    """Keys and values of one layer: `powerinfer.ops.gpu.attention.DeviceKV`, which says more."""

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
        """Whether the elements are codes with scales."""
        ...

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Keys, values and their scales."""
        ...


class PlacedBatch(Protocol):
    """Where the tokens of a step stand: `powerinfer.ops.gpu.batch.DeviceBatch`."""

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
