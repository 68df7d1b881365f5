"""Prefill of prompts in chunks, whose steps may pause between layers."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import numpy as np

from powerinfer.engine.text import RunningText
from powerinfer.kvcache import KVCache
from powerinfer.loading.loader import LoadedModel, Progress
from powerinfer.loading.reading import PrefillProgress
from powerinfer.models.paused_step import PausedStep
from powerinfer.values import FloatArray, IntArray

__all__ = ["Chunk", "Prefill", "Prefiller"]

# Largest logits of a chunk when all are reported: 110 rows of 152k entries.
_LOGITS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of a prompt, all of one kind.

    Attributes:
        text: the text that the prompt belongs to.
        token_ids: at least one.
        is_prompt: kind of the tokens.
        num_wanted: number of tokens at the end whose rows are wanted: logits or hidden states.
    """

    text: RunningText
    token_ids: list[int]
    is_prompt: bool
    num_wanted: int


class Prefiller:
    """Prepares chunks of prompts; changes nothing but the cache."""

    def __init__(self, loaded: LoadedModel, cache: KVCache, progress: Progress | None) -> None:
        """Prepare; `progress` is called with (tokens computed, tokens in all)."""
        self._model = loaded.model
        self._held = loaded.steps.held
        self._cache = cache
        self._most_rows = max(1, _LOGITS_BYTES // (4 * loaded.model.config.vocab_size))
        # A step has one observer, and the model's own comes first.
        watches_layers = loaded.placement is None and loaded.model.observer is None
        num_layers = loaded.model.config.num_layers
        self._progress = PrefillProgress(progress, num_layers, watches_layers=watches_layers)

    @property
    def num_slices(self) -> int:
        """Number of slices of about equal duration between which a prefill can pause."""
        return self._model.config.num_layers if self._model.ops.runs_layers_apart else 1

    def next_chunk(self, text: RunningText, count: int) -> Chunk | None:
        """Return the next tokens of a prompt, at most `count`; None if it is computed."""
        sequence, first = text.sequence, text.first_wanted
        if not sequence.num_pending:
            return None
        start = sequence.num_computed
        if first is not None and not text.wants_states:
            count = min(count, max(first - start, 0) + self._most_rows)
        token_ids, is_prompt = sequence.pending_run(count)
        is_last = not sequence.is_decoding and len(token_ids) == sequence.num_pending
        num_wanted = int(is_last)
        if first is not None:
            num_wanted = max(0, start + len(token_ids) - max(start, first))
        return Chunk(text, token_ids, is_prompt, num_wanted)

    def begin(self, chunks: Sequence[Chunk]) -> "Prefill":
        """Prepare the computation of chunks; those of one kind stand next to each other.

        All of them want logits, or all hidden states, which are computed without a pause.
        """
        sequences = [chunk.text.sequence for chunk in chunks]
        parts = [
            (sequence.key, chunk.token_ids, sequence.num_computed)
            for sequence, chunk in zip(sequences, chunks, strict=True)
        ]
        batch = self._cache.batch(parts, [chunk.is_prompt for chunk in chunks])
        start = sum(sequence.num_computed - sequence.num_reused for sequence in sequences)
        total = sum(sequence.num_to_read for sequence in sequences)
        num_tokens = batch.num_tokens
        observe = self._progress.begin(start, num_tokens, total)
        model, cache, wanted = self._model, self._cache, _wanted(chunks)
        whole = partial(model.forward, batch, cache, logits_for=wanted, observe=observe)
        num_slices = self.num_slices
        if chunks[0].text.wants_states:
            whole = partial(model.hidden_states, batch, cache, states_for=wanted, observe=observe)
            num_slices = 1
        begin = partial(model.begin, batch, cache, logits_for=wanted, observe=observe)
        is_end = start + num_tokens == total
        has_ended = partial(self._progress.end, total) if is_end else None
        return Prefill(chunks, whole, begin, num_slices, self._held, has_ended)


class Prefill:
    """Chunks that are computed slice by slice; after an exception it cannot be resumed.

    Attributes:
        chunks: those of one kind stand next to each other.
        sizes: first position and number of tokens of each.
        seconds: duration so far.
        num_left: number of slices still to be computed.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        whole: Callable[[], FloatArray],
        begin: Callable[[], PausedStep],
        num_slices: int,
        held: Callable[[], AbstractContextManager[None]],
        has_ended: Callable[[], None] | None,
    ) -> None:
        """Prepare.

        Args:
            chunks: see the class.
            whole: computes all of them at once.
            begin: makes the step that computes them slice by slice.
            num_slices: number of slices of that step.
            held: lock to hold during each computation.
            has_ended: called at the end if no prompt has tokens left.
        """
        self.chunks = chunks
        self.sizes = [(each.text.sequence.num_computed, len(each.token_ids)) for each in chunks]
        self.seconds = 0.0
        self.num_left = num_slices
        self._whole, self._begin, self._held, self._has_ended = whole, begin, held, has_ended
        self._step: PausedStep | None = None

    @property
    def is_wanted(self) -> bool:
        """True if none of its texts is over, as the blocks of those may be another's by now."""
        return not any(chunk.text.is_over for chunk in self.chunks)

    def run(self, num_slices: int) -> FloatArray | None:
        """Compute at least one slice; at the end return the rows in the order of the chunks.

        Returns:
            f32[sum of num_wanted, vocab_size or hidden_size]; None before the end.
        """
        with self._held():
            started = time.perf_counter()
            if self._step is None and num_slices >= self.num_left:
                logits: FloatArray | None = self._whole()
            else:
                self._step = self._step or self._begin()
                logits = self._step.run(num_slices)
            seconds = time.perf_counter() - started
        self.num_left = 0 if logits is not None else self.num_left - num_slices
        self.seconds += seconds
        for chunk in self.chunks:
            if not chunk.text.sequence.is_decoding:  # tokens moved by a shift are no prefill
                chunk.text.cost.prefill_s += seconds
                chunk.text.cost.prefill_tokens += 0 if logits is None else len(chunk.token_ids)
        if logits is not None and self._has_ended is not None:
            self._has_ended()
        return logits


def _wanted(chunks: Sequence[Chunk]) -> IntArray:
    """Return the numbers of the tokens whose rows are wanted."""
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        rows.extend(range(end - chunk.num_wanted, end))
    return np.array(rows, np.int32)
