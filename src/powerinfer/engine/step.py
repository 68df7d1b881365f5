"""One sequence on one model: which tokens its KV cache holds, and the steps that extend it.

A step is described by a `Batch`, which may hold several sequences. To batch requests, a scheduler
can fill it from many of these objects, and nothing below has to change.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeAlias

import numpy as np

from powerinfer.engine.fair_lock import FairLock
from powerinfer.errors import PromptError
from powerinfer.models import KVCache, Model
from powerinfer.values import Batch, FloatArray, IntArray

__all__ = ["Counting", "TokenSequence"]

Counting: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Makes what is entered while one step is computed, to count what it costs."""

_log = logging.getLogger(__name__)


class TokenSequence:
    """Tokens of one sequence whose keys and values are in the cache.

    An exception in the middle of a step (Ctrl-C) leaves the sequence as it was before the step.

    Attributes:
        token_ids: what the cache holds, in order; position i is token_ids[i].
        context_length: most tokens it may hold.
        num_shifts: how often `shift` has moved tokens.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        batch_size: int,
        steps: FairLock | None = None,
    ) -> None:
        """Start an empty sequence.

        Args:
            model: the loaded model.
            cache: room for the model's whole context.
            batch_size: most tokens in one step.
            steps: held during a step, where other threads compute on the same weights.
        """
        self._model = model
        self._cache = cache
        self._batch_size = batch_size
        self._held = nullcontext if steps is None else steps.held
        # Not `self`: the cache keeps its keys, and would keep the sequence that keeps the cache.
        self._cache_key = object()
        self.context_length = model.context_length
        self.token_ids: list[int] = []
        self.num_shifts = 0

    @property
    def num_free(self) -> int:
        """Tokens that can still be added."""
        return self.context_length - len(self.token_ids)

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that a decode step at this length reads."""
        length = len(self.token_ids)
        window = self._model.config.sliding_window or length
        return self._cache.bytes_per_position * min(length, window)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        del self.token_ids[length:]
        self._cache.truncate(self._cache_key, length)

    def keep_prefix(self, token_ids: Sequence[int]) -> None:
        """Forget all but the tokens that `token_ids` begins with, too."""
        pairs = enumerate(zip(self.token_ids, token_ids, strict=False))
        shared = min(len(self.token_ids), len(token_ids))
        self.truncate(next((index for index, (a, b) in pairs if a != b), shared))

    def extend(self, token_ids: Sequence[int], counting: Counting = nullcontext) -> FloatArray:
        """Append tokens, in batches, and return the logits after the last: f32[vocab_size].

        Args:
            token_ids: to append.
            counting: makes what is entered during each step, to count what it costs.

        Raises:
            PromptError: there are no tokens, or more than the context has room for.
        """
        logits: FloatArray = self.extend_scored(token_ids, 1, counting)[-1]
        return logits

    def extend_scored(
        self, token_ids: Sequence[int], num_scored: int, counting: Counting = nullcontext
    ) -> FloatArray:
        """Append tokens and return the logits after each of the last `num_scored` of them.

        Returns:
            f32[num_scored, vocab_size].

        Raises:
            PromptError: as for `extend`.
        """
        parts = self._parts(token_ids, num_scored)
        scored = [self._step(part, wanted, self._logits, counting) for part, wanted in parts]
        return np.concatenate(scored) if len(scored) > 1 else scored[0]

    def extend_states(self, token_ids: Sequence[int], num_wanted: int) -> FloatArray:
        """Append tokens and return the hidden states of the last `num_wanted` of them.

        Returns:
            f32[num_wanted, hidden_size], what the output head gets.

        Raises:
            PromptError: as for `extend`.
        """
        parts = self._parts(token_ids, num_wanted)
        return np.concatenate([self._step(part, wanted, self._states) for part, wanted in parts])

    def _parts(
        self, token_ids: Sequence[int], num_wanted: int
    ) -> Iterator[tuple[Sequence[int], IntArray]]:
        """Tokens in steps, and which of each step belong to the last `num_wanted`."""
        if not token_ids:
            raise PromptError("there are no tokens to compute; the prompt is empty")
        if len(token_ids) > self.num_free:
            raise PromptError(
                f"{len(token_ids)} tokens do not fit: the context of {self.context_length} tokens "
                f"holds {len(self.token_ids)} already"
            )
        first_wanted = len(token_ids) - num_wanted
        for start in range(0, len(token_ids), self._batch_size):
            part = token_ids[start : start + self._batch_size]
            yield part, np.arange(max(0, first_wanted - start), len(part), dtype=np.int32)

    def shift(self, num_kept: int) -> None:
        """Make room: keep the first `num_kept` tokens and the newer half of the others.

        The kept tokens move to lower positions, so their keys and values are computed anew.

        Raises:
            PromptError: so much is to be kept that nothing can be dropped.
        """
        movable = self.token_ids[num_kept:]
        num_dropped = (len(movable) + 1) // 2
        if len(movable) < 2:
            raise PromptError(
                f"a context of {self.context_length} tokens cannot be shifted while its first "
                f"{num_kept} tokens are kept",
                remedy="use a larger context ({context_length}) or keep less ({keep_tokens})",
            )
        self.num_shifts += 1
        _log.info("context full: dropped %d of %d tokens", num_dropped, len(self.token_ids))
        self.truncate(num_kept)
        self.extend(movable[num_dropped:])

    def _step(
        self,
        token_ids: Sequence[int],
        wanted: IntArray,
        compute: Callable[[Batch, IntArray], FloatArray],
        counting: Counting = nullcontext,
    ) -> FloatArray:
        batch = self._cache.batch([(self._cache_key, token_ids, len(self.token_ids))])
        with self._held(), counting():
            result = compute(batch, wanted)
        self.token_ids.extend(token_ids)
        return result

    def _logits(self, batch: Batch, wanted: IntArray) -> FloatArray:
        return self._model.forward(batch, self._cache, logits_for=wanted)

    def _states(self, batch: Batch, wanted: IntArray) -> FloatArray:
        return self._model.hidden_states(batch, self._cache, states_for=wanted)
