"""When to ask the draft model, whose guesses take time, and for how many tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from weakref import WeakKeyDictionary

from powerinfer.engine.drafts.acceptance import OF_PROBABILITIES, Acceptance, Guess, Source
from powerinfer.engine.drafts.draft_model import DraftModel, Wish
from powerinfer.engine.drafts.drafter import MAX_ROWS
from powerinfer.engine.drafts.row_planner import RowChoice, RowPlanner
from powerinfer.engine.text import RunningText

__all__ = ["ModelDrafts"]

# Share of right guesses before anything is known.
_EXPECTED = 0.7
# A text is expected to go on for as many tokens as it has, and these.
_LEAST_LEFT = 32
# Share of the time for guesses that are not expected to pay: they show what a text is like by now.
_TRIAL = 0.02


class _Asked(Source):
    """What a draft model guessed for a text.

    Attributes:
        num_silent: steps since then.
    """

    num_silent = 0


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A text that the model could guess for.

    Attributes:
        most: largest number of tokens.
        num_left: most tokens that the text may still get.
    """

    text: RunningText
    source: _Asked
    most: int
    num_left: int


class ModelDrafts:
    """Asks the draft model where its guesses are expected to be better than those looked up.

    What they cost is measured, and part of the choice. Reading a text for the first time must be
    worth it, too.
    """

    def __init__(self, model: DraftModel, rows: RowPlanner) -> None:
        """Start without texts."""
        self._model, self._rows = model, rows
        self._texts = WeakKeyDictionary[RunningText, _Asked]()
        # Texts begin with what the last one's guesses were like.
        self._mean = _EXPECTED

    def sweep(self) -> None:
        """Free what texts have that are over."""
        self._model.sweep()

    def better(
        self,
        texts: Sequence[RunningText | None],
        guesses: Sequence[Guess],
        num_rows: Sequence[int],
        rooms: Sequence[int],
    ) -> Sequence[Guess]:
        """Return the guesses, some of them replaced by those of the model.

        Args:
            texts: those of the step; None for one that the model must not guess for.
            num_rows: rows of each without drafts.
            rooms: most tokens that each may get after the next one.
        """
        most_rows = MAX_ROWS - sum(num_rows)
        candidates = self._candidates(texts, guesses, rooms, most_rows)
        known = self._rows.best(guesses, num_rows)
        seconds = self._rows.costs.seconds(sum(num_rows))
        if not candidates or known is None or seconds is None:
            return guesses
        drafting = partial(self._drafting_s, candidates, seconds)
        hoped = list(guesses)
        for place, each in candidates.items():
            mean = each.source.acceptance.mean.value
            hoped[place] = Guess((), [mean**number for number in range(1, each.most + 1)])
        best = self._rows.best(hoped, num_rows, drafting) or known
        wishes: dict[int, Wish] = {}
        for place, each in candidates.items():
            each.source.num_silent += 1
            if most := self._num_wanted(each, best.counts.get(place, 0), known, best, seconds):
                wishes[place] = Wish(each.text, most, each.source.acceptance)
        if not wishes:
            return guesses
        drafts = self._model.guess(list(wishes.values()), best.rate * self._step_s(1, seconds))
        found = list(guesses)
        for place, draft in zip(wishes, drafts, strict=True):
            if draft.token_ids:
                source, token_ids = candidates[place].source, candidates[place].text.known_ids
                source.num_silent = 0
                source.learn(token_ids, is_last=True)
                found[place] = source.note(len(token_ids), draft)
        return found

    def _candidates(
        self,
        texts: Sequence[RunningText | None],
        guesses: Sequence[Guess],
        rooms: Sequence[int],
        most_rows: int,
    ) -> dict[int, _Candidate]:
        """Return the texts whose next token the model may know better, by place."""
        found = {}
        for place, (text, guess, room) in enumerate(zip(texts, guesses, rooms, strict=True)):
            if text is None:
                continue
            source = self._texts.get(text)
            if source is None:
                acceptance = Acceptance(OF_PROBABILITIES, self._mean)
                source = self._texts[text] = _Asked(acceptance)
            source.learn(text.known_ids, is_last=False)
            self._mean = mean = source.acceptance.mean.value
            most = min(room, most_rows, self._model.room(text))
            if most > 0 and (not guess.chances or guess.chances[0] < mean):
                found[place] = _Candidate(text, source, most, room)
        return found

    def _num_wanted(
        self, each: _Candidate, count: int, known: RowChoice, best: RowChoice, seconds: float
    ) -> int:
        """Return how many guesses a text gets.

        Args:
            count: how many are expected to pay, once the text was read.
            known: what is best without the model.
            best: what is best with it.
            seconds: duration of a step without drafts.
        """
        reading_s = self._model.seconds_to_read(each.text, self._step_s(1, seconds))
        saved_s = 1 / known.rate - 1 / best.rate
        num_more = min(each.num_left, _LEAST_LEFT + each.text.num_generated)
        if count and reading_s <= saved_s * num_more:
            return count
        trial_s = reading_s + self._step_s(1, seconds)
        return int(trial_s <= _TRIAL * seconds * each.source.num_silent)

    def _drafting_s(
        self, candidates: Mapping[int, _Candidate], seconds: float, counts: Mapping[int, int]
    ) -> float:
        """Return how long the model takes for numbers of guesses by place; others are there."""
        asked = [count for place, count in counts.items() if place in candidates]
        return sum(
            self._step_s(sum(count >= number for count in asked), seconds)
            for number in range(1, max(asked, default=0) + 1)
        )

    def _step_s(self, num_texts: int, seconds: float) -> float:
        """Return how long a step of the model takes.

        Args:
            seconds: duration of a step of the other model.
        """
        known = self._model.costs.seconds(num_texts)
        return seconds * self._model.share if known is None else known
