"""Sizes, tensors and keys of a model of any family; each family is a file of its own."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from families.vocabulary import vocabulary_of
from powerinfer.gguf import keys

__all__ = ["FamilyShape", "Tensors"]

Tensors = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class FamilyShape(ABC):
    """Sizes of a model.

    Attributes:
        intermediate_size: neurons of the FFN; with experts, of one of them.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int

    final_norm: ClassVar[str]
    has_head: ClassVar[bool]
    has_head_norms: ClassVar[bool] = True
    family: ClassVar[str]

    @property
    def architecture(self) -> str:
        """`general.architecture`."""
        return self.family

    @abstractmethod
    def layer(self, number: int) -> Tensors:
        """Names in a layer, and shapes, outermost dimension first."""

    @abstractmethod
    def family_keys(self) -> dict[str, object]:
        """Keys of the architecture besides the common ones."""

    def tensors(self) -> Tensors:
        """All tensors of the file."""
        yield "token_embd.weight", (self.vocab_size, self.hidden_size)
        for number in range(self.num_layers):
            for name, dims in self.layer(number):
                yield f"blk.{number}.{name}", dims
        yield f"{self.final_norm}.weight", (self.hidden_size,)
        if self.has_head:
            yield "output.weight", (self.vocab_size, self.hidden_size)

    def metadata(self, name: str) -> dict[str, object]:
        """All keys of the file."""
        sizes: dict[str, object] = {
            keys.CONTEXT_LENGTH: 32768,
            keys.HIDDEN_SIZE: self.hidden_size,
            keys.NUM_LAYERS: self.num_layers,
            keys.INTERMEDIATE_SIZE: self.intermediate_size,
            keys.NUM_HEADS: self.num_heads,
            keys.NUM_KV_HEADS: self.num_kv_heads,
        }
        own = sizes | self.family_keys()
        return {
            keys.ARCHITECTURE: self.architecture,
            keys.NAME: name,
            **{f"{self.architecture}.{key}": value for key, value in own.items()},
            **vocabulary_of(self.family, self.vocab_size),
        }

    def _attention(self, q_size: int) -> Tensors:
        attended, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        yield "attn_q.weight", (q_size, self.hidden_size)
        yield "attn_k.weight", (kv_size, self.hidden_size)
        yield "attn_v.weight", (kv_size, self.hidden_size)
        yield "attn_output.weight", (self.hidden_size, attended)
        if self.has_head_norms:
            yield "attn_q_norm.weight", (self.head_dim,)
            yield "attn_k_norm.weight", (self.head_dim,)

    def _ffn(self, count: tuple[int, ...] = (), end: str = "") -> Tensors:
        yield f"ffn_gate{end}.weight", (*count, self.intermediate_size, self.hidden_size)
        yield f"ffn_up{end}.weight", (*count, self.intermediate_size, self.hidden_size)
        yield f"ffn_down{end}.weight", (*count, self.hidden_size, self.intermediate_size)
