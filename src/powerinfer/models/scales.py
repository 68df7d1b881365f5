"""Scale factors and soft caps of a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from powerinfer.gguf import keys
from powerinfer.models.metadata import Metadata

__all__ = ["DefaultScales", "Scales", "Sizes", "read_scales", "usual_scales"]

_LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that the scales of some families depend on; see `ModelConfig`."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Scales:
    """Scale factors and soft caps; 1 and None for no effect.

    Attributes:
        attention: factor of scores.
        embedding: factor of rows of the embedding.
        residual: factor of the output of attention and FFN. Not applied at run time: the stream is
            stored divided by it, so it starts at embedding / residual, and the epsilon of its norms
            is divided by residual^2.
        logits: divisor of logits.
        attention_soft_cap: scores s become cap * tanh(s / cap).
        logit_soft_cap: the same for logits, after the division.
    """

    attention: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None

    def stream_epsilon(self, eps: float) -> float:
        """Epsilon of norms of the stored residual stream."""
        return eps / self.residual**2


DefaultScales: TypeAlias = Callable[[Sizes], Scales]
"""Default scales of a family."""


def usual_scales(sizes: Sizes) -> Scales:
    """Scale only scores, by 1 / sqrt(head_dim)."""
    return Scales(attention=sizes.head_dim**-0.5)


def read_scales(metadata: Metadata, default: Scales) -> Scales:
    """Read the keys of scales and caps; 0 counts as absent.

    Raises:
        GGUFError: a value is not a number or out of range.
    """

    def number(key: str, otherwise: float) -> float:
        value = metadata.number(key, default=0.0, high=_LARGEST)
        if 0.0 < value < 1.0 / _LARGEST:
            raise metadata.error(
                metadata.key(key), f"is {value}; expected 0 or a number from {1 / _LARGEST:g}"
            )
        return value or otherwise

    return replace(
        default,
        attention=number(keys.ATTENTION_SCALE, default.attention),
        embedding=number(keys.EMBEDDING_SCALE, default.embedding),
        residual=number(keys.RESIDUAL_SCALE, default.residual),
        logits=number(keys.LOGIT_SCALE, default.logits),
        attention_soft_cap=number(keys.ATTENTION_SOFT_CAP, default.attention_soft_cap or 0.0)
        or None,
        logit_soft_cap=number(keys.LOGIT_SOFT_CAP, default.logit_soft_cap or 0.0) or None,
    )
