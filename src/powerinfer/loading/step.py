"""One sequence on one model: the tokens in its KV cache and the steps that extend it.

It computes logits; `powerinfer.engine.engine` generates texts.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from powerinfer.errors import PromptError
from powerinfer.kvcache import KVCache
from powerinfer.loading.reading import PrefillProgress
from powerinfer.loading.turns import FairLock
from powerinfer.models import Model
from powerinfer.models.blocks import Observer
from powerinfer.values import Batch, FloatArray, IntArray

__all__ = ["Counting", "TokenSequence"]

Counting: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Makes a context manager that counts the cost of the step computed in it."""

_Compute: TypeAlias = Callable[[Batch, IntArray, Observer | None], FloatArray]


@dataclass(frozen=True, slots=True)
class _Part:
    """Tokens of one step, all of one kind; `wanted`, i32[num_wanted], selects output rows."""

    token_ids: Sequence[int]
    is_prompt: bool
    wanted: IntArray
    observe: Observer | None


class TokenSequence:
    """Tokens of one sequence whose keys and values are in the cache.

    Each token is prompt or generated, and is computed as such again when needed. Logits depend on
    the tokens and these kinds (`Batch.is_prompt`), not on the steps that they were computed in.

    An exception in the middle of a step (Ctrl-C) leaves the sequence as it was before the step.

    Attributes:
        token_ids: tokens in the cache; token_ids[i] is at position i.
        context_length: most tokens that it may hold.
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
            cache: cache with room for the model's whole context.
            batch_size: most tokens in one step.
            steps: lock to hold during a step if other threads use the same weights.
            progress: called with (tokens computed, tokens in all) while several are computed.
            watches_layers: call it after each layer; else after each step, as watching a layer that
                runs on a GPU takes time.
            exclusive: context manager entered around each use of a shared cache.
        """
        self._model = model
        self._cache = cache
        self._batch_size = batch_size
        self._exclusive = exclusive
        self._held = nullcontext if steps is None else steps.held
        # A step has one observer, and the model's own comes first.
        watches_layers = watches_layers and model.observer is None
        num_layers = model.config.num_layers
        self._reading = PrefillProgress(progress, num_layers, watches_layers=watches_layers)
        # Not `self`: the cache keeps its keys, and would keep the sequence that keeps the cache.
        self._cache_key = object()
        self.context_length = model.context_length
        self.token_ids: list[int] = []
        self._is_prompt: list[bool] = []  # one per token, see `is_prompt`

    @property
    def num_free(self) -> int:
        """Number of tokens that can still be added."""
        return self.context_length - len(self.token_ids)

    @property
    def is_prompt(self) -> list[bool]:
        """One flag per token: whether it is prompt."""
        return self._is_prompt[: len(self.token_ids)]

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that a decode step at this length reads."""
        config = self._model.config
        per_layer = self._cache.bytes_per_position // config.num_layers
        return per_layer * config.num_attended(len(self.token_ids))

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        # In this order: Ctrl-C may come between them, and no token may be without its kind.
        del self.token_ids[length:]
        del self._is_prompt[length:]
        with self._exclusive():
            self._cache.truncate(self._cache_key, length)

    def abandon(self) -> None:
        """Forget all tokens and free all room; the caller must have the cache to itself."""
        del self.token_ids[:]
        del self._is_prompt[:]
        self._cache.free(self._cache_key)

    def append(self, token_id: int, counting: Counting = nullcontext) -> FloatArray:
        """Append a generated token and return the logits after it, like `extend`."""
        return self.extend([token_id], counting, is_prompt=[False])

    def extend(
        self,
        token_ids: Sequence[int],
        counting: Counting = nullcontext,
        *,
        is_prompt: Sequence[bool] | None = None,
    ) -> FloatArray:
        """Append tokens, in batches, and return the logits after the last: f32[vocab_size].

        Args:
            token_ids: tokens to append.
            counting: makes a context manager for each step, to count its cost.
            is_prompt: one flag per token; None if all are prompt.

        Raises:
            PromptError: there are no tokens, more than fit the context, or `is_prompt` has another
                length.
        """
        logits: FloatArray = self.extend_scored(token_ids, 1, counting, is_prompt=is_prompt)[-1]
        return logits

    def extend_scored(
        self,
        token_ids: Sequence[int],
        num_scored: int,
        counting: Counting = nullcontext,
        *,
        is_prompt: Sequence[bool] | None = None,
    ) -> FloatArray:
        """Append tokens and return the logits after each of the last `num_scored` of them.

        Returns:
            f32[num_scored, vocab_size].

        Raises:
            PromptError: as for `extend`.
        """
        parts = self._parts(token_ids, num_scored, is_prompt)
        scored = [self._step(part, self._logits, counting) for part in parts]
        return np.concatenate(scored) if len(scored) > 1 else scored[0]

    def _parts(
        self, token_ids: Sequence[int], num_wanted: int, is_prompt: Sequence[bool] | None = None
    ) -> Iterator[_Part]:
        """Cut tokens into steps of one kind; a mixed one would be computed by kinds anyway."""
        if not token_ids:
            raise PromptError("there are no tokens to compute; the prompt is empty")
        if len(token_ids) > self.num_free:
            raise PromptError(
                f"{len(token_ids)} tokens do not fit: the context of {self.context_length} tokens "
                f"holds {len(self.token_ids)} already"
            )
        if is_prompt is not None and len(is_prompt) != len(token_ids):
            raise PromptError(
                f"is_prompt has {len(is_prompt)} entries, there are {len(token_ids)} tokens"
            )
        first_wanted = len(token_ids) - num_wanted
        start = 0
        for kind, group in groupby([True] * len(token_ids) if is_prompt is None else is_prompt):
            end = start + sum(1 for _ in group)
            while start < end:
                part = token_ids[start : min(end, start + self._batch_size)]
                wanted = np.arange(max(0, first_wanted - start), len(part), dtype=np.int32)
                observe = self._reading.begin(start, len(part), len(token_ids))
                yield _Part(part, kind, wanted, observe)
                start += len(part)
        self._reading.end(len(token_ids))

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
        # In this order: Ctrl-C between the two leaves kinds too many, which the next step replaces.
        self._is_prompt[start:] = [part.is_prompt] * len(token_ids)
        self.token_ids.extend(token_ids)
        return result

    def _logits(self, batch: Batch, wanted: IntArray, observe: Observer | None) -> FloatArray:
        return self._model.forward(batch, self._cache, logits_for=wanted, observe=observe)
