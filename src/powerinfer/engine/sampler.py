"""Logits to the next token id, in the order users of llama.cpp expect.

Bias -> penalties -> processors -> top-k -> top-p -> min-p -> temperature -> draw. Filters sort
their candidates likeliest first and lower id first among equals, so that a seed gives the same
text everywhere.
"""

import secrets
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from powerinfer.engine.logit_processors import LogitChanges
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.errors import NumericsError
from powerinfer.values import FloatArray

__all__ = ["Sampler"]

Ids = npt.NDArray[np.intp]
# Logits are compared in as many groups as this when the largest few are looked for.
_GROUP_SIZE = 64
# Without top-k the nucleus is searched among this many tokens first, then eight times as many.
FIRST_NUCLEUS = 1024


class Sampler:
    """Draws token ids for one sequence.

    Attributes:
        params: what was asked for.
        seed: the seed really used, drawn at random where `params.seed` is None.
    """

    def __init__(self, params: SamplingParams, banned_ids: Collection[int] = ()) -> None:
        """Make a sampler.

        Args:
            params: sampling parameters.
            banned_ids: token ids that are never chosen.
        """
        self.params = params
        self.seed = secrets.randbits(32) if params.seed is None else params.seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._changes = LogitChanges(params, banned_ids)

    @property
    def state(self) -> Mapping[str, object] | None:
        """What decides later draws, to go back to it."""
        return None if self.params.is_greedy else self._random.bit_generator.state

    @state.setter
    def state(self, kept: Mapping[str, object] | None) -> None:
        if kept is not None:
            self._random.bit_generator.state = kept

    def sample(self, logits: FloatArray, recent_ids: Sequence[int] = ()) -> int:
        """Choose the next token.

        Args:
            logits: f32[vocab_size]; not changed.
            recent_ids: token ids of the sequence so far; the last `repeat_last_n` are penalised.

        Raises:
            NumericsError: a logit is NaN or infinite.
            PromptError: a processor returned something unusable, or no token is left to choose.
        """
        check_finite(logits)
        logits = self._changes.apply(logits, recent_ids)
        if self.params.is_greedy:
            return int(np.argmax(logits))
        ids = self._top_p(logits, self._top_k(logits))
        values = logits[ids].astype(np.float64)
        best = values.max()
        if self.params.min_p > 0:
            is_kept = values >= best + np.log(self.params.min_p)
            ids, values = ids[is_kept], values[is_kept]
        # Subtracting first keeps the quotient finite for very small temperatures.
        weights = np.exp((values - best) / self.params.temperature)
        total = np.cumsum(weights)
        drawn = np.searchsorted(total, self._random.random() * total[-1], side="right")
        # A share just below 1 may round up to the total, behind which there are only banned tokens.
        return int(ids[min(drawn, np.searchsorted(total, total[-1], side="left"))])

    def _top_k(self, logits: FloatArray) -> Ids | None:
        """Ids of the k largest logits, sorted; None where all are kept."""
        k = self.params.top_k
        return None if k == 0 or k >= len(logits) else largest(logits, k)

    def _top_p(self, logits: FloatArray, ids: Ids | None) -> Ids:
        """The likeliest tokens that together reach `top_p`; `ids` are sorted, None means all."""
        top_p, min_p = self.params.top_p, self.params.min_p
        if ids is not None:
            return ids[: _nucleus(logits[ids], None, top_p) or len(ids)]
        if min_p > 0:
            # What min-p drops later lies behind what it keeps, so it need not be sorted now.
            likely = np.flatnonzero(logits >= float(logits.max()) + np.log(min_p))
            ids = likely[np.argsort(-logits[likely], kind="stable")]
            return ids[: _nucleus(logits[ids], _total(logits), top_p) or len(ids)]
        if top_p >= 1:
            return np.arange(len(logits))
        return self._nucleus_of_all(logits)

    def _nucleus_of_all(self, logits: FloatArray) -> Ids:
        """Top-p over the whole vocabulary: most often a small part of it has to be sorted."""
        total = _total(logits)
        count = FIRST_NUCLEUS
        while count < len(logits):
            ids = largest(logits, count)
            length = _nucleus(logits[ids], total, self.params.top_p)
            if length:
                return ids[:length]
            count *= 8
        ids = largest(logits, len(logits))
        return ids[: _nucleus(logits[ids], total, self.params.top_p) or len(ids)]


def check_finite(logits: FloatArray) -> None:
    """Raise NumericsError if a logit is NaN or infinite; tells how many."""
    # A sum carries NaN and infinities along in one pass; it may also overflow, so count then.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(logits.sum()):
            return
    bad = int(np.count_nonzero(~np.isfinite(logits)))
    if not bad:
        return
    raise NumericsError(f"{bad} of {logits.size} logits are NaN or infinite")


def largest(logits: FloatArray, count: int) -> Ids:
    """Ids of the `count` largest logits, largest first, lower id first among equals."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    ids = np.flatnonzero(logits >= _lower_bound(logits, count))
    order: Ids = ids[np.argsort(-logits[ids], kind="stable")]
    return order[:count]


def _lower_bound(logits: FloatArray, count: int) -> float:
    """A number that `count` logits or somewhat more reach."""
    num_groups = len(logits) // _GROUP_SIZE
    if count >= num_groups:
        return float(np.partition(logits, len(logits) - count)[len(logits) - count])
    # As many groups have a largest logit that reaches it, which takes one pass over the logits.
    grouped = logits[: num_groups * _GROUP_SIZE].reshape(_GROUP_SIZE, num_groups)
    return float(np.partition(grouped.max(axis=0), num_groups - count)[num_groups - count])


def _total(logits: FloatArray) -> float:
    """Sum of exp(logit - largest logit)."""
    return float(np.exp(logits - logits.max()).sum(dtype=np.float64))


def _nucleus(values: FloatArray, total: float | None, top_p: float) -> int:
    """How many of the sorted values reach `top_p` of the total; 0 if all together do not."""
    weights = np.exp(values.astype(np.float64) - float(values[0]))
    sums = np.cumsum(weights)
    wanted = top_p * (sums[-1] if total is None else total)
    if top_p >= 1 or sums[-1] < wanted:
        return 0
    return int(np.searchsorted(sums, wanted, side="left")) + 1
