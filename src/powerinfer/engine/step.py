"""One sequence on one model: which tokens its KV cache holds, and the steps that extend it.

A step is described by a `Batch`, which may hold several sequences. To batch requests, a scheduler
can fill it from many of these objects, and nothing below has to change.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeAlias

import numpy as np

from powerinfer.engine.fair_lock import FairLock
from powerinfer.engine.reading import Reading
from powerinfer.errors import PromptError
from powerinfer.models import KVCache, Model
from powerinfer.models.blocks import Observer
from powerinfer.values import Batch, FloatArray, IntArray

__all__ = ["Counting", "TokenSequence"]

Counting: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Makes what is entered while one step is computed, to count what it costs."""

_Compute: TypeAlias = Callable[[Batch, IntArray, Observer | None], FloatArray]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of one step, all of one kind.

    Attributes:
        token_ids: at least one.
        is_prompt: of all of them.
        wanted: i32[num_wanted], which of them something is wanted of.
        observe: who watches; None for nobody.
    """

    token_ids: Sequence[int]
    is_prompt: bool
    wanted: IntArray
    observe: Observer | None


class TokenSequence:
    """Tokens of one sequence whose keys and values are in the cache.

    Each token is prompt or was generated, and stays what it was: it is computed as such again where
    that is needed. Logits depend on the tokens and on this (`Batch.is_prompt`), not on the steps
    they were computed in.

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
        progress: Callable[[int, int], None] | None = None,
        *,
        watches_layers: bool = False,
        exclusive: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Start an empty sequence.

        Args:
            model: the loaded model.
            cache: room for the model's whole context.
            batch_size: most tokens in one step.
            steps: held during a step, where other threads compute on the same weights.
            progress: called with (tokens computed, tokens in all) while several are computed.
            watches_layers: call it after each layer; else after each step, as watching a layer that
                runs on a GPU takes time.
            exclusive: entered where the cache is used, where others use it, too.
        """
        self._model = model
        self._cache = cache
        self._batch_size = batch_size
        self._exclusive = exclusive
        self._held = nullcontext if steps is None else steps.held
        # A step has one observer, and the model's own comes first.
        watches_layers = watches_layers and model.observer is None
        num_layers = model.config.num_layers
        self._reading = Reading(progress, num_layers, watches_layers=watches_layers)
        # Not `self`: the cache keeps its keys, and would keep the sequence that keeps the cache.
        self._cache_key = object()
        self.context_length = model.context_length
        self.token_ids: list[int] = []
        self._marks: list[bool] = []  # of each of them whether it was prompt
        self.num_shifts = 0

    @property
    def num_free(self) -> int:
        """Tokens that can still be added."""
        return self.context_length - len(self.token_ids)

    @property
    def marks(self) -> list[bool]:
        """Of each token held whether it was prompt."""
        return self._marks[: len(self.token_ids)]

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that a decode step at this length reads."""
        config = self._model.config
        per_layer = self._cache.bytes_per_position // config.num_layers
        return per_layer * config.num_attended(len(self.token_ids))

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        # One after the other, as Ctrl-C may come between them: marks are never fewer than tokens.
        del self.token_ids[length:]
        del self._marks[length:]
        with self._exclusive():
            self._cache.truncate(self._cache_key, length)

    def reserve(self, num_tokens: int) -> None:
        """Promise it room, see `KVCache.reserve`; for who may use the cache alone.

        Raises:
            PromptError: there is not as much.
        """
        self._cache.reserve(self._cache_key, num_tokens)

    @property
    def num_reserved(self) -> int:
        """Blocks that it has or was promised."""
        return self._cache.num_reserved(self._cache_key)

    @property
    def freeing(self) -> Callable[[], None]:
        """Gives all room back without keeping this sequence alive."""
        return partial(self._cache.free, self._cache_key)

    def give_up(self) -> None:
        """Forget all tokens and give all room back; for who may use the cache alone."""
        del self.token_ids[:]
        del self._marks[:]
        self._cache.free(self._cache_key)

    def keep_prefix(self, token_ids: Sequence[int], marks: Sequence[bool] | None = None) -> None:
        """Forget all but the tokens that `token_ids` begins with, too, and that are of its kind.

        Args:
            token_ids: of a text.
            marks: of each whether it is prompt; None if all are. Then no generated token is kept,
                because its keys and values have other bits than those of a prompt.
        """
        wanted = zip(token_ids, _all_prompt(token_ids) if marks is None else marks, strict=True)
        held = zip(self.token_ids, self.marks, strict=True)
        pairs = enumerate(zip(held, wanted, strict=False))
        shared = min(len(self.token_ids), len(token_ids))
        self.truncate(next((index for index, (a, b) in pairs if a != b), shared))

    def append(self, token_id: int, counting: Counting = nullcontext) -> FloatArray:
        """Append a generated token and return the logits after it; else as `extend`."""
        return self.extend([token_id], counting, marks=[False])

    def extend(
        self,
        token_ids: Sequence[int],
        counting: Counting = nullcontext,
        *,
        marks: Sequence[bool] | None = None,
    ) -> FloatArray:
        """Append tokens, in batches, and return the logits after the last: f32[vocab_size].

        Args:
            token_ids: to append.
            counting: makes what is entered during each step, to count what it costs.
            marks: of each whether it is prompt; None if all are.

        Raises:
            PromptError: there are no tokens, more than the context has room for, or not as many
                marks.
        """
        logits: FloatArray = self.extend_scored(token_ids, 1, counting, marks=marks)[-1]
        return logits

    def extend_scored(
        self,
        token_ids: Sequence[int],
        num_scored: int,
        counting: Counting = nullcontext,
        *,
        marks: Sequence[bool] | None = None,
    ) -> FloatArray:
        """Append tokens and return the logits after each of the last `num_scored` of them.

        Returns:
            f32[num_scored, vocab_size].

        Raises:
            PromptError: as for `extend`.
        """
        parts = self._parts(token_ids, num_scored, marks)
        scored = [self._step(part, self._logits, counting) for part in parts]
        return np.concatenate(scored) if len(scored) > 1 else scored[0]

    def extend_states(self, token_ids: Sequence[int], num_wanted: int) -> FloatArray:
        """Append prompt tokens and return the hidden states of the last `num_wanted` of them.

        Returns:
            f32[num_wanted, hidden_size], what the output head gets.

        Raises:
            PromptError: as for `extend`.
        """
        parts = self._parts(token_ids, num_wanted)
        return np.concatenate([self._step(part, self._states) for part in parts])

    def _parts(
        self, token_ids: Sequence[int], num_wanted: int, marks: Sequence[bool] | None = None
    ) -> Iterator[_Part]:
        """Cut tokens into steps.

        A step has tokens of one kind: those of two would be computed kind by kind anyway.
        """
        if not token_ids:
            raise PromptError("there are no tokens to compute; the prompt is empty")
        if len(token_ids) > self.num_free:
            raise PromptError(
                f"{len(token_ids)} tokens do not fit: the context of {self.context_length} tokens "
                f"holds {len(self.token_ids)} already"
            )
        if marks is not None and len(marks) != len(token_ids):
            raise PromptError(
                f"{len(marks)} marks for {len(token_ids)} tokens, must be one for each"
            )
        first_wanted = len(token_ids) - num_wanted
        start = 0
        for is_prompt, group in groupby(_all_prompt(token_ids) if marks is None else marks):
            end = start + sum(1 for _ in group)
            while start < end:
                part = token_ids[start : min(end, start + self._batch_size)]
                wanted = np.arange(max(0, first_wanted - start), len(part), dtype=np.int32)
                observe = self._reading.begin(start, len(part), len(token_ids))
                yield _Part(part, is_prompt, wanted, observe)
                start += len(part)
        self._reading.end(len(token_ids))

    def shift(self, num_kept: int) -> None:
        """Make room: keep the first `num_kept` tokens and the newer half of the others.

        The kept tokens move to lower positions, so their keys and values are computed anew, as
        those of prompt or generated tokens, whichever they were.

        Raises:
            PromptError: so much is to be kept that nothing can be dropped.
        """
        movable, marks = self.token_ids[num_kept:], self.marks[num_kept:]
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
        self.extend(movable[num_dropped:], marks=marks[num_dropped:])

    def _step(
        self,
        part: _Part,
        compute: _Compute,
        counting: Counting = nullcontext,
    ) -> FloatArray:
        token_ids = part.token_ids
        with self._exclusive():
            start = len(self.token_ids)
            batch = self._cache.batch([(self._cache_key, token_ids, start)], [part.is_prompt])
            with self._held(), counting():
                result = compute(batch, part.wanted, part.observe)
        # Marks first: Ctrl-C between the two leaves marks too many, which the next step replaces.
        self._marks[start:] = [part.is_prompt] * len(token_ids)
        self.token_ids.extend(token_ids)
        return result

    def _logits(self, batch: Batch, wanted: IntArray, observe: Observer | None) -> FloatArray:
        return self._model.forward(batch, self._cache, logits_for=wanted, observe=observe)

    def _states(self, batch: Batch, wanted: IntArray, observe: Observer | None) -> FloatArray:
        return self._model.hidden_states(batch, self._cache, states_for=wanted, observe=observe)


def _all_prompt(token_ids: Sequence[int]) -> list[bool]:
    return [True] * len(token_ids)
