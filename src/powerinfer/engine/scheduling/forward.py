"""Steps of the model on the pending tokens of many sequences: counted, timed, watched."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerinfer.engine.loader import LoadedModel, Progress
from powerinfer.engine.metrics import StepMeter
from powerinfer.engine.reading import Reading
from powerinfer.engine.scheduling.text import Text
from powerinfer.models import KVCache
from powerinfer.values import FloatArray, IntArray

__all__ = ["Chunk", "Forward"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next tokens of a prompt, all of one kind.

    Attributes:
        text: whose prompt it is.
        token_ids: at least one.
        is_prompt: their kind.
        num_wanted: of how many of the last of them logits are wanted.
    """

    text: Text
    token_ids: list[int]
    is_prompt: bool
    num_wanted: int


class Forward:
    """Runs steps; changes nothing but the cache and what the texts cost."""

    def __init__(self, loaded: LoadedModel, cache: KVCache, reading: Progress | None) -> None:
        """Prepare.

        Args:
            loaded: the model.
            cache: of all sequences.
            reading: called with (tokens computed, tokens in all) while several are computed.
        """
        self._model = loaded.model
        self._held = loaded.steps.held
        self._cache = cache
        # A step has one observer, and the model's own comes first.
        watches_layers = loaded.placement is None and loaded.model.observer is None
        num_layers = loaded.model.config.num_layers
        self._progress = Reading(reading, num_layers, watches_layers=watches_layers)
        self.meter = StepMeter(loaded.model, loaded.dense_bytes)
        self._bytes_per_layer = cache.bytes_per_position // num_layers

    def decode(self, texts: Sequence[Text]) -> FloatArray:
        """Compute the last token of each text: f32[texts, vocab_size] logits behind it."""
        sequences = [text.sequence for text in texts]
        parts = [(each.key, each.token_ids[-1:], each.num_computed) for each in sequences]
        batch = self._cache.batch(parts, [False] * len(parts))
        with self._held(), self.meter.counting():
            logits = self._model.forward(batch, self._cache)
        num_attended = self._model.config.num_attended
        kv_bytes = [self._bytes_per_layer * num_attended(each.num_computed) for each in sequences]
        for text, share in zip(texts, self.meter.shares(kv_bytes), strict=True):
            text.cost.add_decode_step(share)
        return logits

    def prefill(self, chunks: Sequence[Chunk]) -> FloatArray:
        """Compute chunks: f32[num_wanted of all, vocab_size] logits, in their order.

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
        with self._held():
            started = time.perf_counter()
            logits = self._model.forward(
                batch, self._cache, logits_for=_wanted(chunks), observe=observe
            )
            seconds = time.perf_counter() - started
        for sequence, chunk in zip(sequences, chunks, strict=True):
            if not sequence.is_decoding:  # what a shift moved is no prompt
                chunk.text.cost.prefill_s += seconds
                chunk.text.cost.prefill_tokens += len(chunk.token_ids)
        if start + num_tokens == total:
            self._progress.end(total)
        return logits


def _wanted(chunks: Sequence[Chunk]) -> IntArray:
    """Rows of the step whose logits are wanted."""
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += len(chunk.token_ids)
        rows.extend(range(end - chunk.num_wanted, end))
    return np.array(rows, np.int32)
