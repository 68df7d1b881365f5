"""Drafts of the texts of a step: where they come from, and how many it computes."""

import time
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from weakref import WeakKeyDictionary

from powerinfer.engine.drafts.acceptance import Acceptance, Guess, Source
from powerinfer.engine.drafts.draft_model import DraftModel
from powerinfer.engine.drafts.drafter import MAX_ROWS, Drafter, may_draft
from powerinfer.engine.drafts.model_drafts import ModelDrafts
from powerinfer.engine.drafts.ngram import AnswerMemory, NgramDrafter, shortest_match
from powerinfer.engine.drafts.row_planner import RowPlanner
from powerinfer.engine.request import Request
from powerinfer.engine.text import RunningText
from powerinfer.kvcache import KVCache
from powerinfer.kvcache.sequence_room import StepPart
from powerinfer.loading.loader import LoadedModel
from powerinfer.options.options import AUTO

__all__ = ["DraftController", "StepRows"]


_NONE = Guess()


class _Lookup:
    """Drafts that are looked up for one text, which takes no time."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self._found: Source | None = None

    def propose(self, token_ids: Sequence[int], eog_ids: Set[int], most: int) -> Guess:
        """Learn from the last draft, and look up the next one, which no token follows that ends."""
        if self._found is not None:
            self._found.learn(token_ids, is_last=True)
        draft = self._drafter.propose(token_ids, MAX_ROWS - 1)
        if not draft.token_ids:
            return _NONE
        going_on = sum(1 for _ in takewhile(lambda each: each not in eog_ids, draft.token_ids))
        self._found = self._found or Source(Acceptance())
        guess = self._found.note(len(token_ids), draft.first(going_on))
        return Guess(guess.token_ids[:most], guess.chances[:most])


@dataclass(frozen=True, slots=True)
class StepRows:
    """Rows of one text in a decode step.

    Attributes:
        start: position of the first.
        token_ids: tokens computed again, the last token, and drafts.
        draft: the drafts at the end of these.
    """

    text: RunningText
    start: int
    token_ids: Sequence[int]
    draft: Sequence[int]

    @property
    def num_again(self) -> int:
        """Number of tokens at the beginning that are computed for their state alone."""
        return len(self.token_ids) - len(self.draft) - 1

    @property
    def part(self) -> StepPart:
        """The text's part of the batch."""
        return self.text.sequence.key, self.token_ids, self.start


class DraftController:
    """Plans the rows of decode steps, with drafts where they are expected to make it faster.

    Its choices depend on time, and change no bit.
    """

    def __init__(self, loaded: LoadedModel, cache: KVCache, length_limit: int) -> None:
        """Start without texts.

        Args:
            length_limit: most tokens that a sequence may hold.
        """
        options = loaded.options
        self._setting, self._is_possible = options.draft, may_draft(loaded)
        self._eog_ids = loaded.tokenizer.eog_ids
        self._cache, self._length_limit = cache, length_limit
        self._rows = RowPlanner(has_states=cache.states is not None)
        shortest = shortest_match(self._setting)
        self._memory = AnswerMemory(shortest) if options.draft_memory and shortest else None
        self._texts = WeakKeyDictionary[RunningText, _Lookup]()
        self._planned = time.perf_counter()
        self._model: ModelDrafts | None = None
        if loaded.draft is not None and self._is_possible:
            self._model = ModelDrafts(DraftModel(loaded.draft, loaded), self._rows)

    def plan(self, texts: Sequence[RunningText]) -> list[StepRows]:
        """Return the rows of a step that computes the next token of each text.

        Those of a model with state begin where a text holds the right state: if drafts were
        rejected, it has none after its last tokens.
        """
        if self._model is not None:
            self._model.sweep()
        sequences = [text.sequence for text in texts]
        starts = [self._cache.resumable(each.key, each.num_computed) for each in sequences]
        known = [each.token_ids[start:] for each, start in zip(sequences, starts, strict=True)]
        drafts: Sequence[Sequence[int]] = [()] * len(texts)
        if self._is_possible:
            rooms = [text.num_wanted(self._length_limit) - 1 for text in texts]
            drafts = self.choose(texts, [len(each) for each in known], rooms)
        rows = zip(texts, starts, known, drafts, strict=True)
        self._planned = time.perf_counter()
        return [StepRows(text, start, [*own, *more], more) for text, start, own, more in rows]

    def record(self, planned: Sequence[StepRows]) -> None:
        """Learn how long the planned step took, and remember answers of texts that are over."""
        num_rows = sum(len(rows.token_ids) for rows in planned)
        self._rows.costs.record(num_rows, time.perf_counter() - self._planned)
        if self._memory is not None:
            for text in (rows.text for rows in planned):
                if text.is_over and not text.has_failed:
                    self._memory.add(text.known_ids[text.num_prompt :])

    def choose(
        self, texts: Sequence[RunningText], num_rows: Sequence[int], rooms: Sequence[int]
    ) -> Sequence[Sequence[int]]:
        """Return drafts for each of the texts of a step, () for most.

        Args:
            num_rows: rows of each without drafts: one, and those of tokens computed again.
            rooms: most drafts of each.
        """
        most = MAX_ROWS - sum(num_rows)
        if most <= 0:
            return [()] * len(texts)
        limits = [max(0, min(room, most)) for room in rooms]
        guesses: Sequence[Guess] = list(map(self._look_up, texts, limits))
        if self._model is not None:
            asking = [each if self._asks_model(each.handle.request) else None for each in texts]
            guesses = self._model.better(asking, guesses, num_rows, rooms)
        best = self._rows.best(guesses, num_rows) if any(each.chances for each in guesses) else None
        counts = {} if best is None else best.counts
        return [guess.token_ids[: counts.get(place, 0)] for place, guess in enumerate(guesses)]

    def _look_up(self, text: RunningText, most: int) -> Guess:
        lookup = self._texts.get(text)
        if lookup is None:
            drafter = self._drafter(text.handle.request)
            if drafter is None:
                return _NONE
            lookup = self._texts[text] = _Lookup(drafter)
        return lookup.propose(text.known_ids, self._eog_ids, most)

    def _drafter(self, request: Request) -> Drafter | None:
        """Return the source of drafts that a request asks for; None if it wants none."""
        if request.drafter is not None:
            return request.drafter
        shortest = shortest_match(self._setting_of(request))
        return None if shortest is None else NgramDrafter(shortest, self._memory)

    def _asks_model(self, request: Request) -> bool:
        """Tell whether a request wants drafts of the draft model."""
        return request.drafter is None and self._setting_of(request) == AUTO

    def _setting_of(self, request: Request) -> str:
        setting = request.params.draft
        return self._setting if setting is None else setting
