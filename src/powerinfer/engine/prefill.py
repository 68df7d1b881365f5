"""Prefill of prompts in chunks, whose steps may pause between layers."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from powerinfer.engine.text import RunningText
from powerinfer.kvcache import KVCache
from powerinfer.loading.loader import LoadedModel, Progress
from powerinfer.models import Model
from powerinfer.models.blocks import Observer, Stage
from powerinfer.models.paused_step import PausedStep
from powerinfer.values import FloatArray, IntArray

__all__ = ["Chunk", "Prefill", "PrefillProgress", "begin_prefill", "slices_of"]

# Largest logits of a chunk for log probabilities: 110 rows of 152k entries.
_LOGITS_BYTES = 64 << 20


class PrefillProgress:
    """Reports to a caller's function how many prompt tokens are computed."""

    def __init__(
        self, progress: Progress | None, model: Model, *, watches_layers: bool = False
    ) -> None:
        """Prepare reports.

        Args:
            progress: called with (tokens computed, tokens in all); None reports nothing.
            watches_layers: report after each layer; else after each step, as watching a layer that
                runs on a GPU takes time.
        """
        self._progress = progress
        self._num_layers = model.config.num_layers
        # A step has one observer, and the model's own comes first.
        self._watches_layers = watches_layers and model.observer is None

    def begin(self, start: int, count: int, total: int) -> Observer | None:
        """Report the beginning of a step; return an observer for it if layers are watched.

        Args:
            start: number of tokens computed before.
            count: number of tokens of the step.
            total: number of tokens in all; a single one is not reported.
        """
        progress, num_layers = self._progress, self._num_layers
        if progress is None or total == 1:
            return None
        progress(start, total)

        def observe(stage: Stage, layer: int, _stream: FloatArray) -> None:
            if stage is Stage.FFN:
                # Without the last token, so that the end is reported once, after the output head.
                progress(start + (count * (layer + 1) - 1) // num_layers, total)

        return observe if self._watches_layers else None

    def end(self, total: int) -> None:
        """Report that all tokens are computed."""
        if self._progress is not None and total > 1:
            self._progress(total, total)


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


def slices_of(model: Model) -> int:
    """Return the number of slices of about equal duration between which a prefill can pause."""
    return model.config.num_layers if model.ops.runs_layers_apart else 1


def _next_chunk(text: RunningText, count: int, vocab_size: int) -> Chunk | None:
    """Return the next tokens of a prompt, at most `count`; None if it is computed."""
    sequence, first = text.sequence, text.first_wanted
    if not sequence.num_pending:
        return None
    start = sequence.num_computed
    count = min([count, *(end - start for end in text.snapshot_positions if end > start)])
    if first is not None and text.handle.request.prompt_rows is None:
        most_rows = max(1, _LOGITS_BYTES // (4 * vocab_size))
        count = min(count, max(first - start, 0) + most_rows)
    token_ids, is_prompt = sequence.pending_run(count)
    is_last = not sequence.is_decoding and len(token_ids) == sequence.num_pending
    num_wanted = int(is_last)
    if first is not None:
        num_wanted = max(0, start + len(token_ids) - max(start, first))
    return Chunk(text, token_ids, is_prompt, num_wanted)


class Prefill:
    """Chunks that are computed slice by slice; after an exception it cannot be resumed.

    Attributes:
        chunks: those of one kind stand next to each other. All of them want logits, or all hidden
            states.
        sizes: first position and number of tokens of each.
        seconds: duration so far.
        num_left: number of slices still to be computed.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        cache: KVCache,
        progress: PrefillProgress,
        chunks: Sequence[Chunk],
    ) -> None:
        """Allocate the blocks of the chunks."""
        sequences = [chunk.text.sequence for chunk in chunks]
        parts = [
            (sequence.key, chunk.token_ids, sequence.num_computed)
            for sequence, chunk in zip(sequences, chunks, strict=True)
        ]
        start = sum(sequence.num_computed - sequence.num_reused for sequence in sequences)
        self.chunks = chunks
        self.sizes = [(position, len(token_ids)) for _, token_ids, position in parts]
        self.seconds = 0.0
        self._model, self._cache, self._held = loaded.model, cache, loaded.steps.held
        self._wants_states = chunks[0].text.wants_states
        self.num_left = slices_of(self._model)
        self._batch = cache.batch(parts, [chunk.is_prompt for chunk in chunks])
        self._wanted = _wanted(chunks)
        self._progress = progress
        self._total = sum(sequence.num_to_read for sequence in sequences)
        self._is_end = start + self._batch.num_tokens == self._total
        self._observe = progress.begin(start, self._batch.num_tokens, self._total)
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
                rows: FloatArray | None = self._whole()
            else:
                self._step = self._step or self._model.begin(
                    self._batch,
                    self._cache,
                    rows_for=self._wanted,
                    wants_states=self._wants_states,
                    observe=self._observe,
                )
                rows = self._step.run(num_slices)
            seconds = time.perf_counter() - started
        self.num_left = 0 if rows is not None else self.num_left - num_slices
        self.seconds += seconds
        for chunk in self.chunks:
            if not chunk.text.sequence.is_decoding:  # tokens moved by a shift are no prefill
                chunk.text.cost.prefill_s += seconds
                chunk.text.cost.prefill_tokens += 0 if rows is None else len(chunk.token_ids)
        if rows is not None and self._is_end:
            self._progress.end(self._total)
        return rows

    def _whole(self) -> FloatArray:
        model, batch, cache = self._model, self._batch, self._cache
        if self._wants_states:
            return model.hidden_states(batch, cache, states_for=self._wanted, observe=self._observe)
        return model.forward(batch, cache, logits_for=self._wanted, observe=self._observe)


def begin_prefill(
    loaded: LoadedModel,
    cache: KVCache,
    progress: PrefillProgress,
    texts: Sequence[RunningText],
    counts: Mapping[int, int],
) -> Prefill | None:
    """Begin the next chunks of prompts; return None if there are none.

    Args:
        texts: running texts.
        counts: most tokens to compute, by id of the text.
    """
    wanted = [text for text in texts if text.id in counts and not text.is_over]
    vocab_size = loaded.model.config.vocab_size
    found = [_next_chunk(text, counts[text.id], vocab_size) for text in wanted]
    chunks = [chunk for chunk in found if chunk is not None]
    if not chunks:
        return None
    # A step gives logits or hidden states: those that the first text wants.
    wants_states = chunks[0].text.wants_states
    chunks = [each for each in chunks if each.text.wants_states == wants_states]
    if wants_states and not loaded.is_native_cpu:
        # Elsewhere roundings, and so a vector, depend on what else is in a step.
        chunks = chunks[:1]
    chunks.sort(key=lambda chunk: not chunk.is_prompt)
    return Prefill(loaded, cache, progress, chunks)


def _wanted(chunks: Sequence[Chunk]) -> IntArray:
    """Return the numbers of the tokens whose rows are wanted."""
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        rows.extend(range(end - chunk.num_wanted, end))
    return np.array(rows, np.int32)
