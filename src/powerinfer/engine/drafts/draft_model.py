"""Drafts of a second, smaller model that reads the texts along.

It has keys and values of its own, of what the text has accepted and of the tokens that it guesses.
Where the two differ the text is right: what follows is computed again.
"""

import math
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np

from powerinfer.engine.costs import RowCosts
from powerinfer.engine.drafts.acceptance import Acceptance
from powerinfer.engine.drafts.drafter import MAX_ROWS, NO_DRAFT, Draft
from powerinfer.engine.text import RunningText
from powerinfer.errors import PromptError
from powerinfer.kvcache.prefix_tree import PrefixTree
from powerinfer.loading.loader import LoadedModel
from powerinfer.values import FloatArray

__all__ = ["DraftModel", "Wish"]

# Tokens that a step computes at most to catch up with a text, so that others need not wait long.
_CHUNK = 256
# So many tokens are computed along with the first guess.
_FEW = 4
# Of the tokens that it reads at once, so many show how well it would have guessed them.
_SEEN = 16
# Tokens of a chunk in the time of a step, before anything is known.
_READ_PER_STEP = 8


@dataclass(slots=True, eq=False)
class _Reading:
    """What the model has read of a text.

    Attributes:
        token_ids: tokens whose keys and values are in the cache.
        num_right: number of these that are known to be the text's.
        num_shifts: of the text, when that was known.
    """

    text: "weakref.ref[RunningText]"
    token_ids: list[int] = field(default_factory=list)
    num_right: int = 0
    num_shifts: int = 0

    @property
    def is_over(self) -> bool:
        """True if nothing more of the text is read."""
        text = self.text()
        return text is None or text.is_over

    def compare(self, text: RunningText) -> None:
        """Find out how many of the tokens are the text's, not counting its last one."""
        wanted = text.sequence.token_ids
        if text.sequence.num_shifts != self.num_shifts:
            self.num_shifts, self.num_right = text.sequence.num_shifts, 0
        first = min(self.num_right, len(wanted))
        pairs = zip(self.token_ids[first:], wanted[first:], strict=False)
        equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.num_right = min(first + equal, len(wanted) - 1)


@dataclass(frozen=True, slots=True)
class Wish:
    """Guesses that a text could use.

    Attributes:
        most: largest number of them.
        acceptance: how likely the text's guesses are right.
    """

    text: RunningText
    most: int
    acceptance: Acceptance


class DraftModel:
    """Guesses the likeliest next tokens of several texts at once.

    Attributes:
        costs: how long its steps take.
        share: the same, as a share of a step of the model that it drafts for, by their bytes.
    """

    def __init__(self, loaded: LoadedModel, main: LoadedModel) -> None:
        """Allocate keys and values.

        Args:
            loaded: the draft model.
            main: the model that it drafts for.
        """
        self.costs = RowCosts()
        self.share = loaded.model.bytes_per_token(1) / main.model.bytes_per_token(1)
        self._loaded, self._eog_ids = loaded, main.tokenizer.eog_ids
        self._num_known = loaded.model.config.vocab_size
        self._vocab_size = min(main.model.config.vocab_size, self._num_known)
        self._cache = loaded.new_cache()
        self._tree = PrefixTree(self._cache)
        num_positions = self._cache.num_blocks * self._cache.block_size
        self._length_limit = min(loaded.model.context_length, num_positions)
        self._readings = weakref.WeakKeyDictionary[RunningText, _Reading]()
        self._held: list[_Reading] = []
        self._refused = weakref.WeakSet[RunningText]()
        self._read_s: float | None = None

    def room(self, text: RunningText) -> int:
        """Return how many tokens of a text it could guess next; 0 if it cannot read it."""
        if text in self._refused:
            return 0
        return max(0, self._length_limit - len(text.sequence.token_ids))

    def seconds_to_read(self, text: RunningText, step_seconds: float) -> float:
        """Estimate what it takes to read the text before it can guess; infinite if it cannot.

        Args:
            step_seconds: duration of one of its steps.
        """
        reading = self._reading(text)
        if reading is None:
            return math.inf
        num_pending = len(text.sequence.token_ids) - reading.num_right
        if num_pending <= _FEW:
            return 0.0
        known = self._read_s
        return num_pending * (step_seconds / _READ_PER_STEP if known is None else known)

    def sweep(self) -> None:
        """Free what was read of texts that are over, and keep it for later ones."""
        over = [each for each in self._held if each.is_over]
        for reading in over:
            if self._cache.blocks_of(reading):
                self._keep(reading, is_over=True)
            self._cache.free(reading)
        if over:
            self._held = [each for each in self._held if each not in over]

    def guess(self, wishes: Sequence[Wish], least: float) -> list[Draft]:
        """Guess tokens, a step of the model for the next of all texts.

        A text that it has read too little of gets none; it reads on.

        Args:
            least: chance below which a token, with those before it, is not worth a step.
        """
        drafts = [NO_DRAFT] * len(wishes)
        places = [place for place, wish in enumerate(wishes) if self._has_read(wish)]
        while places:
            rows = self._step([(wishes[place].text, drafts[place].token_ids) for place in places])
            going_on = []
            for place, (token_id, probability) in zip(places, rows, strict=True):
                wish, draft = wishes[place], drafts[place]
                # Numbers that are none speak for nothing.
                if token_id in self._eog_ids or not probability > 0:
                    continue
                levels = (*draft.levels, probability)
                drafts[place] = draft = Draft((*draft.token_ids, token_id), levels)
                chance = wish.acceptance.chances(draft)[-1]
                if len(draft.token_ids) < wish.most and chance > least:
                    going_on.append(place)
            places = going_on
        return drafts

    def _step(self, parts: Sequence[tuple[RunningText, Sequence[int]]]) -> list[tuple[int, float]]:
        """Compute what is pending of texts and their guesses; return next tokens and chances."""
        started = time.perf_counter()
        readings = [self._readings[text] for text, _ in parts]
        wholes = [[*text.sequence.token_ids, *more] for text, more in parts]
        starts = [
            reading.num_right if not more else len(whole) - 1
            for reading, whole, (_, more) in zip(readings, wholes, parts, strict=True)
        ]
        found = _likeliest(self._forward(readings, wholes, starts))
        num_rows = sum(map(len, wholes)) - sum(starts)
        self.costs.record(num_rows, time.perf_counter() - started)
        return found

    def _forward(
        self,
        readings: Sequence[_Reading],
        wholes: Sequence[list[int]],
        starts: Sequence[int],
        num_scored: int = 0,
    ) -> FloatArray:
        """Compute the ends of some texts; return f32[num_texts, vocab_size] logits after each.

        Args:
            num_scored: of a single text that is read, compute logits after as many of its tokens.
        """
        parts = [
            (reading, whole[start:], start)
            for reading, whole, start in zip(readings, wholes, starts, strict=True)
        ]
        batch = self._cache.batch(parts, [num_scored > 0] * len(parts))
        ends = np.cumsum([len(token_ids) for _, token_ids, _ in parts], dtype=np.int32) - 1
        if num_scored:
            ends = np.arange(ends[0] + 1 - num_scored, ends[0] + 1, dtype=np.int32)
        with self._loaded.steps.held():
            logits_for = None if batch.num_tokens == len(parts) else ends
            rows = self._loaded.model.forward(batch, self._cache, logits_for=logits_for)
        for reading, whole in zip(readings, wholes, strict=True):
            reading.token_ids = whole
        return rows[:, : self._vocab_size]

    def _has_read(self, wish: Wish) -> bool:
        """Read on in a text that too much is left of, and tell whether it can be guessed now."""
        text = wish.text
        reading, whole = self._reading(text), text.sequence.token_ids
        if reading is None:
            return False
        start = reading.num_right
        if max(whole[start:]) >= self._num_known:
            return self._refuse(text)
        is_near = len(whole) - start <= _FEW
        end = len(whole) - 1 if is_near else min(start + _CHUNK, len(whole) - 1)
        try:
            # Room for all guesses, so that no step of several texts fails for one.
            self._cache.allocate(reading, min(self._length_limit, end + MAX_ROWS), start)
        except PromptError:
            return self._refuse(text)
        if is_near:
            return True
        started = time.perf_counter()
        # Those that the text has chosen show how well they would have been guessed.
        count = min(_SEEN, end - start, text.num_generated) if end == len(whole) - 1 else 0
        rows = self._forward([reading], [whole[:end]], [start], max(count, 1))
        self._read_s = (time.perf_counter() - started) / (end - start)
        for (token_id, level), chosen in zip(
            _likeliest(rows[len(rows) - count :]), whole[len(whole) - count :], strict=True
        ):
            wish.acceptance.add(level, is_right=token_id == chosen)
        reading.num_right = end
        self._keep(reading)
        return end == len(whole) - 1

    def _reading(self, text: RunningText) -> _Reading | None:
        """Return what was read of a text, compared with it; None if there is no room for it."""
        whole, reading = text.sequence.token_ids, self._readings.get(text)
        if text in self._refused:
            return None
        if reading is None:
            reading = _Reading(weakref.ref(text))
            self._held = [*self._held, reading]
            found = self._tree.match(whole, shares_answers=True, limit=len(whole) - 1)
            try:
                self._tree.share(reading, found)
            except PromptError:
                self._refuse(text)
                return None
            reading.token_ids = whole[: found.num_positions]
            self._readings[text] = reading
        reading.compare(text)
        return reading

    def _refuse(self, text: RunningText) -> bool:
        """Read nothing more of a text."""
        self._refused.add(text)
        return False

    def _keep(self, reading: _Reading, *, is_over: bool = False) -> None:
        """Let later texts begin with what was read of this one."""
        length = reading.num_right
        self._cache.truncate(reading, length)
        # As if all were prompt: no bit depends on it.
        kinds = [True] * length
        self._tree.insert(reading, reading.token_ids[:length], kinds, is_over=is_over)


def _likeliest(rows: FloatArray) -> list[tuple[int, float]]:
    """Return the likeliest token of each of f32[n, vocab_size] logits, and its probability."""
    largest = rows.max(axis=1, keepdims=True)
    chances = 1 / np.exp(rows - largest).sum(axis=1)
    return list(zip(rows.argmax(axis=1).tolist(), chances.tolist(), strict=True))
