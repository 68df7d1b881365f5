"""A sequence whose logits are computed at once, for benchmarks; `Engine` computes texts."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from powerinfer.engine.prefill import PrefillProgress
from powerinfer.engine.text import TokenSequence
from powerinfer.errors import PowerInferError, PromptError
from powerinfer.kvcache import KVCache
from powerinfer.loading.turns import FairLock
from powerinfer.models import Model, sequence_bytes
from powerinfer.ops.protocol import WantedLogits
from powerinfer.values import FloatArray

__all__ = ["DirectSequence"]


class DirectSequence:
    """Tokens whose keys and values are in the cache.

    Each token is prompt or generated, and is computed as such. Logits depend on the tokens and
    these kinds (`Batch.is_prompt`), not on the steps that they were computed in.

    An exception in the middle of a step (Ctrl-C) leaves the sequence as it was before the step.

    Attributes:
        context_length: most tokens that it may hold.
        wanted: logits of generated tokens that a screened head must compute; None for all.
    """

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        batch_size: int,
        *,
        steps: FairLock | None = None,
        progress: PrefillProgress | None = None,
        exclusive: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Start an empty sequence.

        Args:
            cache: cache with room for the model's whole context.
            batch_size: most tokens in one step.
            steps: lock to hold during a step if other threads use the same weights.
            progress: reports while several tokens are computed.
            exclusive: context manager entered around each use of a shared cache.
        """
        self._model = model
        self._cache = cache
        self._batch_size = batch_size
        self._held = nullcontext if steps is None else steps.held
        self._progress = progress or PrefillProgress(None, model)
        self._exclusive = exclusive
        self._sequence = TokenSequence()
        self.context_length = model.context_length
        self.wanted: WantedLogits | None = None

    @property
    def token_ids(self) -> list[int]:
        """Tokens in the cache; token_ids[i] is at position i."""
        return self._sequence.token_ids[: self._sequence.num_computed]

    @property
    def is_prompt(self) -> list[bool]:
        """One flag per token: whether it is prompt."""
        return self._sequence.is_prompt[: self._sequence.num_computed]

    @property
    def num_free(self) -> int:
        """Number of tokens that can still be added."""
        return self.context_length - self._sequence.num_computed

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys, values and states that a decode step at this length reads."""
        config, kv_type = self._model.config, self._cache.kv_type
        return sequence_bytes(config, self._sequence.num_computed, kv_type)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` tokens.

        Raises:
            PowerInferError: the model has a state, and this sequence no longer has the one after
                `length` tokens; nothing was forgotten.
        """
        with self._exclusive():
            length = min(length, self._sequence.num_computed)
            if not self._cache.can_resume(self._sequence.key, length):
                raise PowerInferError(
                    f"this model's state after {length} tokens is not kept: truncate to 0 and "
                    "compute them again"
                )
            # One assignment, which no interrupt can split; the next step drops the tokens.
            self._sequence.num_computed = length
            self._cache.truncate(self._sequence.key, length)

    def abandon(self) -> None:
        """Forget all tokens and free all room; the caller must have the cache to itself."""
        self._sequence.num_computed = 0
        self._sequence.read_next((), ())
        self._cache.free(self._sequence.key)

    def append(self, token_id: int) -> FloatArray:
        """Append a generated token and return the logits after it, like `extend`."""
        return self.extend([token_id], is_prompt=[False])

    def extend(
        self, token_ids: Sequence[int], *, is_prompt: Sequence[bool] | None = None
    ) -> FloatArray:
        """Append tokens, in batches, and return the logits after the last: f32[vocab_size].

        Args:
            is_prompt: one flag per token; None if all are prompt.

        Raises:
            PromptError: there are no tokens, more than fit the context, or `is_prompt` has another
                length.
            PowerInferError: another thread generated texts meanwhile; the sequence is empty.
        """
        logits: FloatArray = self.extend_scored(token_ids, 1, is_prompt=is_prompt)[-1]
        return logits

    def extend_scored(
        self, token_ids: Sequence[int], num_scored: int, *, is_prompt: Sequence[bool] | None = None
    ) -> FloatArray:
        """Extend, and return f32[num_scored, vocab_size] logits after each of the last tokens.

        Raises:
            PromptError: as for `extend`.
        """
        sequence, count = self._sequence, len(token_ids)
        if not count:
            raise PromptError("there are no tokens to compute; the prompt is empty")
        if count > self.num_free:
            raise PromptError(
                f"{count} tokens do not fit: the context of {self.context_length} tokens "
                f"holds {sequence.num_computed} already"
            )
        if is_prompt is not None and len(is_prompt) != count:
            raise PromptError(f"is_prompt has {len(is_prompt)} entries, there are {count} tokens")
        kinds = [True] * count if is_prompt is None else is_prompt
        start = sequence.num_computed
        end = start + count
        scored: list[FloatArray] = []
        while start < end:
            with self._exclusive():
                if sequence.num_computed != start:  # abandoned by another thread meanwhile
                    raise PowerInferError(
                        "texts that another thread generated took the room of this sequence: "
                        "compute it again from its first token"
                    )
                if not scored:
                    sequence.read_next(token_ids, kinds)
                scored.append(self._step(end - num_scored))
                start = sequence.num_computed
        self._progress.end(count)
        return np.concatenate(scored) if len(scored) > 1 else scored[0]

    def _step(self, first_scored: int) -> FloatArray:
        """Compute the next tokens of one kind; a mixed step would be computed by kinds anyway."""
        sequence = self._sequence
        start = sequence.num_computed
        token_ids, kind = sequence.pending_run(self._batch_size)
        wanted = np.arange(max(0, first_scored - start), len(token_ids), dtype=np.int32)
        begun = start - sequence.num_reused
        observe = self._progress.begin(begun, len(token_ids), sequence.num_to_read)
        batch = self._cache.batch([(sequence.key, token_ids, start)], [kind])
        with self._held():
            logits = self._model.forward(
                batch,
                self._cache,
                logits_for=wanted,
                observe=observe,
                wanted=[self.wanted] * len(wanted),
            )
        # One assignment, which no interrupt can split, makes them tokens in the cache.
        sequence.num_computed = start + len(token_ids)
        return logits
