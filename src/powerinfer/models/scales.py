"""Constants that a model multiplies its numbers by, and caps that it bends them under."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from powerinfer.gguf import keys
from powerinfer.models.metadata import Metadata
from powerinfer.values import FloatArray

__all__ = ["DefaultScales", "Scales", "Sizes", "read_scales", "usual_scales"]

_LARGEST = 1e6


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes that the scales of some families follow; see `ModelConfig`."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Scales:
    """What a model multiplies or divides by; 1 and None where it does not.

    Attributes:
        attention: scores are multiplied by it.
        embedding: what is looked up in the embedding is multiplied by it.
        residual: what attention and FFN add to the residual stream is multiplied by it. Nothing
            multiplies at run time: the stream is held divided by it, so it begins at embedding /
            residual, and the epsilon of norms of the stream is divided by residual^2.
        logits: logits are divided by it.
        attention_soft_cap: scores s become cap * tanh(s / cap).
        logit_soft_cap: the same of logits, once they are divided.
    """

    attention: float
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None

    def of_embedding(self, x: FloatArray) -> FloatArray:
        """Where the residual stream begins, from rows of the embedding."""
        scale = self.embedding / self.residual
        return x if scale == 1.0 else x * np.float32(scale)

    def of_logits(self, logits: FloatArray) -> FloatArray:
        """The model's logits, from what its output head returns."""
        with np.errstate(all="ignore"):  # A damaged model's logits are judged elsewhere.
            if self.logits != 1.0:
                logits = logits / np.float32(self.logits)
            if self.logit_soft_cap is not None:
                cap = np.float32(self.logit_soft_cap)
                logits = np.tanh(logits / cap) * cap
        return logits

    def stream_epsilon(self, eps: float) -> float:
        """Epsilon of norms of the residual stream as it is held, from the model's."""
        return eps / self.residual**2


DefaultScales: TypeAlias = Callable[[Sizes], Scales]
"""What a family scales by where the file has no key for it."""


def usual_scales(sizes: Sizes) -> Scales:
    """Nothing but the scores, by 1 / sqrt(head_dim)."""
    return Scales(attention=sizes.head_dim**-0.5)


def read_scales(metadata: Metadata, default: Scales) -> Scales:
    """Read the keys of scales and caps; 0 means as much as no key.

    Raises:
        GGUFError: a value is no number or out of range.
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
