"""Prompts in chunks: steps of the model that may pause between layers, counted and timed."""

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

# Of the logits of a chunk all of which are wanted: 110 rows of 152k entries.
_LOGITS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of a prompt, all of one kind.

    Attributes:
        text: whose prompt it is.
        token_ids: at least one.
        is_prompt: their kind.
        num_wanted: of how many of the last of them logits are wanted.
    """

    text: RunningText
    token_ids: list[int]
    is_prompt: bool
    num_wanted: int


class Prefiller:
    """Begins the computation of chunks of prompts; changes nothing but the cache."""

    def __init__(self, loaded: LoadedModel, cache: KVCache, progress: Progress | None) -> None:
        """Prepare.

        Args:
            loaded: the model.
            cache: of all sequences.
            progress: called with (tokens computed, tokens in all) while several are computed.
        """
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
        """Parts, about equally long, between which the computation of chunks can pause."""
        return self._model.config.num_layers if self._model.ops.runs_layers_apart else 1

    def next_chunk(self, text: RunningText, count: int) -> Chunk | None:
        """The next tokens of a prompt, at most `count`; None where it is computed."""
        sequence, first = text.sequence, text.first_scored
        if not sequence.num_pending:
            return None
        start = sequence.num_computed
        if first is not None:
            count = min(count, max(first - start, 0) + self._most_rows)
        token_ids, is_prompt = sequence.pending_run(count)
        is_last = not sequence.is_decoding and len(token_ids) == sequence.num_pending
        num_wanted = int(is_last)
        if first is not None:
            num_wanted = max(0, start + len(token_ids) - max(start, first))
        return Chunk(text, token_ids, is_prompt, num_wanted)

    def begin(self, chunks: Sequence[Chunk]) -> "Prefill":
        """Prepare the computation of chunks.

        Args:
            chunks: those of one kind next to each other.
        """
        sequences = [chunk.text.sequence for chunk in chunks]
        parts = [
            (sequence.key, chunk.token_ids, sequence.num_computed)
            for sequence, chunk in zip(sequences, chunks, strict=True)
        ]
        batch = self._cache.batch(parts, [chunk.is_prompt for chunk in chunks])
        start, total = (
            sum(sequence.num_computed - sequence.num_reused for sequence in sequences),
            sum(sequence.num_to_read for sequence in sequences),
        )
        num_tokens = batch.num_tokens
        observe = self._progress.begin(start, num_tokens, total)
        model, cache, wanted = self._model, self._cache, _wanted(chunks)
        whole = partial(model.forward, batch, cache, logits_for=wanted, observe=observe)
        begin = partial(model.begin, batch, cache, logits_for=wanted, observe=observe)
        is_end = start + num_tokens == total
        has_ended = partial(self._progress.end, total) if is_end else None
        return Prefill(chunks, whole, begin, self.num_slices, self._held, has_ended)


class Prefill:
    """Chunks that are computed slice by slice; one that raised is of no more use.

    Attributes:
        chunks: those of one kind next to each other.
        sizes: first position and number of tokens of each.
        seconds: that it took so far.
        num_left: slices that are to be computed.
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
            chunks: see above.
            whole: computes them in one go.
            begin: makes the step that computes them slice by slice.
            num_slices: of it.
            held: entered while it runs.
            has_ended: called when it was the last of all prompts.
        """
        self.chunks = chunks
        self.sizes = [(each.text.sequence.num_computed, len(each.token_ids)) for each in chunks]
        self.seconds = 0.0
        self.num_left = num_slices
        self._whole, self._begin, self._held, self._has_ended = whole, begin, held, has_ended
        self._step: PausedStep | None = None

    @property
    def is_wanted(self) -> bool:
        """None of its texts is over: the blocks of those that are may be another's."""
        return not any(chunk.text.is_over for chunk in self.chunks)

    def run(self, num_slices: int) -> FloatArray | None:
        """Go on: f32[num_wanted of all, vocab_size] logits, in the order of chunks, at the end.

        Args:
            num_slices: to compute, at least one.
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
            if not chunk.text.sequence.is_decoding:  # what a shift moved is no prompt
                chunk.text.cost.prefill_s += seconds
                chunk.text.cost.prefill_tokens += 0 if logits is None else len(chunk.token_ids)
        if logits is not None and self._has_ended is not None:
            self._has_ended()
        return logits


def _wanted(chunks: Sequence[Chunk]) -> IntArray:
    """Rows of the step whose logits are wanted."""
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        rows.extend(range(end - chunk.num_wanted, end))
    return np.array(rows, np.int32)
