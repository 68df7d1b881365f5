"""Held-out perplexity and the share of zero neurons, also with only the largest ones kept."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (torch's own convention)

from powerinfer.train.sparsify.model import SparseModel
from powerinfer.train.sparsify.rows import TokenIds

__all__ = ["Score", "keep_top", "score"]

_PASS_TOKENS = 4096


@dataclass(frozen=True)
class Score:
    """The score of a model on held-out text.

    Attributes:
        perplexity: over the tokens after the first one of each row.
        zeros: share of the neurons that are exactly zero, of each layer.
    """

    perplexity: float
    zeros: list[float]
    num_tokens: int

    @property
    def mean_zeros(self) -> float:
        """Share of zeros over all layers."""
        return sum(self.zeros) / len(self.zeros)


def score(
    model: SparseModel, rows: TokenIds, progress: Callable[[int, int], None] | None = None
) -> Score:
    """Score rows [num_rows, seq_len + 1] of held-out text in f32."""
    zeros = [0] * len(model.ffns)

    def count(layer: int, neurons: Tensor) -> None:
        zeros[layer] += neurons.numel() - int(torch.count_nonzero(neurons))

    total = 0.0
    seq_len = rows.shape[1] - 1
    size = max(1, _PASS_TOKENS // seq_len)
    with torch.no_grad(), model.watched(count):
        for first in range(0, len(rows), size):
            part = torch.from_numpy(rows[first : first + size].astype(np.int64)).to(model.device)
            logits = model.logits(part[:, :-1]).flatten(0, 1).float()
            total += float(F.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum"))
            if progress is not None:
                progress(min(first + size, len(rows)), len(rows))
    num_tokens = len(rows) * seq_len
    num_neurons = num_tokens * model.ffns[0].up_proj.out_features
    mean = total / num_tokens
    return Score(math.exp(min(mean, 700.0)), [each / num_neurons for each in zeros], num_tokens)


@contextmanager
def keep_top(model: SparseModel, share: float) -> Iterator[None]:
    """For a while keep only the neurons with the largest values (TurboSparse, table 3).

    Of each token the `share` of a layer's neurons with the largest magnitude is kept, at least one.
    """
    for ffn in model.ffns:
        ffn.kept = max(1, round(share * ffn.up_proj.out_features))
    try:
        yield
    finally:
        for ffn in model.ffns:
            ffn.kept = None
