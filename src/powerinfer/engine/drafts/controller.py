"""How many drafts pay: what texts accept, what rows cost, and who gets them."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, pairwise, takewhile
from operator import itemgetter, mul
from weakref import WeakKeyDictionary

from powerinfer.engine.drafts.drafter import NO_DRAFT, Draft, Drafter, may_draft
from powerinfer.engine.drafts.ngram import AnswerMemory, NgramDrafter, shortest_match
from powerinfer.engine.request import Request
from powerinfer.engine.text import RunningText
from powerinfer.kvcache import KVCache
from powerinfer.kvcache.sequence_room import StepPart
from powerinfer.loading.loader import LoadedModel

__all__ = ["MAX_ROWS", "Acceptance", "DraftController", "RowCosts", "StepRows"]

MAX_ROWS = 8
"""Most rows of a step with drafts; a batch of as many texts gets none."""

# Rows of such steps: few numbers, since each is measured, and recorded as one native call.
_SIZES = (2, 3, 4, 6, 8)
# Drafts must be expected to win this much, as all that is known is estimated.
_WORTH_IT = 1.03


class Acceptance:
    """How likely drafted tokens of a text are right, by the length of the match before them.

    It learns from drafts that no step computed as well: the text shows which were right.
    """

    # Least lengths of further classes; what is likely before anything is known, and its weight.
    _BOUNDS = (5, 8, 16, 32)
    _EXPECTED = (0.3, 0.5, 0.7, 0.8, 0.9)
    _WEIGHT = 4.0
    _KEPT = 0.93

    def __init__(self) -> None:
        # Per class, numbers of right tokens and of all; older ones count less.
        self._seen = [(self._WEIGHT * expected, self._WEIGHT) for expected in self._EXPECTED]

    def chance(self, match_length: int) -> float:
        """Return the probability that a token after a match of this length is right."""
        num_right, num_all = self._seen[bisect_right(self._BOUNDS, match_length)]
        return num_right / num_all

    def chances(self, draft: Draft) -> list[float]:
        """Return for each token of a draft the probability that it and all before it are right."""
        lengths = range(draft.match_length, draft.match_length + len(draft.token_ids))
        return list(accumulate(map(self.chance, lengths), mul))

    def learn(self, draft: Draft, token_ids: Sequence[int]) -> None:
        """Compare a draft with the tokens that came."""
        pairs = zip(draft.token_ids, token_ids, strict=False)
        for length, (drafted, chosen) in enumerate(pairs, draft.match_length):
            number = bisect_right(self._BOUNDS, length)
            num_right, num_all = (self._KEPT * count for count in self._seen[number])
            self._seen[number] = num_right + (drafted == chosen), num_all + 1
            if drafted != chosen:
                return


class RowCosts:
    """Durations of decode steps by number of rows: medians of the last few, and guesses."""

    _NUM_SAMPLES = 5
    # Fewer measurements may all have been disturbed; the first also records the step.
    _NUM_TRUSTED = 3
    # Of what a step of one row takes, for each further row, before anything is known.
    _FURTHER_ROW = 0.1
    # Steps after which a size that was not computed meanwhile is forgotten.
    _LIFE = 128

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        # By number of rows: the lower median, and the number of the last step.
        self._known: dict[int, tuple[float, int]] = {}
        self._num_steps = 0

    def record(self, num_rows: int, seconds: float) -> None:
        """Record a step."""
        samples = self._samples.setdefault(num_rows, deque(maxlen=self._NUM_SAMPLES))
        samples.append(seconds)
        self._num_steps += 1
        self._known[num_rows] = sorted(samples)[(len(samples) - 1) // 2], self._num_steps
        if self._num_steps % self._LIFE == 0:
            oldest = self._num_steps - self._LIFE
            for size in [size for size, (_, last) in self._known.items() if last <= oldest]:
                del self._known[size], self._samples[size]

    def seconds(self, num_rows: int) -> float | None:
        """Estimate a step; None if nothing is known."""
        known = self._known.get(num_rows)
        if known is None:
            return self._guess(num_rows)
        guess = None
        if len(self._samples[num_rows]) < self._NUM_TRUSTED:
            guess = self._guess(num_rows)
        return known[0] if guess is None else min(known[0], guess)

    def _guess(self, num_rows: int) -> float | None:
        """Estimate a step from those of other sizes."""
        known = sorted((size, each[0]) for size, each in self._known.items() if size != num_rows)
        num_below = sum(size < num_rows for size, _ in known)
        if not num_below or len(known) == 1:
            further = self._FURTHER_ROW
            for size, seconds in known[:1]:
                return seconds * (1 + further * (num_rows - 1)) / (1 + further * (size - 1))
            return None
        is_between = num_below < len(known)
        low, low_seconds = known[num_below - 1 if is_between else 0]
        high, high_seconds = known[num_below if is_between else -1]
        slope = max(0.0, high_seconds - low_seconds) / (high - low)
        return low_seconds + slope * (num_rows - low)


class _TextDrafts:
    """Drafts of one text, and what became of them."""

    def __init__(self, drafter: Drafter) -> None:
        self.acceptance = Acceptance()
        self._drafter = drafter
        self._last = 0, NO_DRAFT

    def propose(self, token_ids: Sequence[int], eog_ids: Set[int]) -> Draft:
        """Learn from the last draft, and make the next one, which no token follows that ends."""
        start, last = self._last
        self.acceptance.learn(last, token_ids[start : start + MAX_ROWS])
        draft = self._drafter.propose(token_ids, MAX_ROWS - 1)
        going_on = tuple(takewhile(lambda token_id: token_id not in eog_ids, draft.token_ids))
        draft = Draft(going_on, draft.match_length)
        self._last = len(token_ids), draft
        return draft


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
        self._costs = RowCosts()
        shortest = shortest_match(self._setting)
        self._memory = AnswerMemory(shortest) if options.draft_memory and shortest else None
        self._texts = WeakKeyDictionary[RunningText, _TextDrafts]()

    def plan(self, texts: Sequence[RunningText]) -> list[StepRows]:
        """Return the rows of a step that computes the next token of each text.

        Those of a model with state begin where a text holds the right state: if drafts were
        rejected, it has none after its last tokens.
        """
        sequences = [text.sequence for text in texts]
        starts = [self._cache.resumable(each.key, each.num_computed) for each in sequences]
        known = [each.token_ids[start:] for each, start in zip(sequences, starts, strict=True)]
        drafts: Sequence[Sequence[int]] = [()] * len(texts)
        if self._is_possible:
            rooms = [text.num_wanted(self._length_limit) - 1 for text in texts]
            drafts = self.choose(texts, [len(each) for each in known], rooms)
        rows = zip(texts, starts, known, drafts, strict=True)
        return [StepRows(text, start, [*own, *more], more) for text, start, own, more in rows]

    def record(self, planned: Sequence[StepRows], seconds: float) -> None:
        """Learn how long a step took, and remember the answers of texts that are over."""
        self._costs.record(sum(len(rows.token_ids) for rows in planned), seconds)
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
        none: Sequence[Sequence[int]] = [()] * len(texts)
        most = MAX_ROWS - sum(num_rows)
        if most <= 0:
            return none
        drafts = [self._propose(text) for text in texts]
        gains: list[tuple[float, int]] = []
        for place, (text, draft, room) in enumerate(zip(texts, drafts, rooms, strict=True)):
            if draft.token_ids and room > 0:
                chances = self._texts[text].acceptance.chances(draft)
                gains += [(chance, place) for chance in chances[: min(room, most)]]
        if not gains:
            return none
        gains.sort(key=itemgetter(0), reverse=True)
        places = [place for _, place in gains[: self._best(gains, num_rows)]]
        return [draft.token_ids[: places.count(place)] for place, draft in enumerate(drafts)]

    def _propose(self, text: RunningText) -> Draft:
        drafts = self._texts.get(text)
        if drafts is None:
            drafter = self._drafter(text.handle.request)
            if drafter is None:
                return NO_DRAFT
            drafts = self._texts[text] = _TextDrafts(drafter)
        return drafts.propose(text.known_ids, self._eog_ids)

    def _drafter(self, request: Request) -> Drafter | None:
        """Return the source of drafts that a request asks for; None if it wants none."""
        if request.drafter is not None:
            return request.drafter
        setting = request.params.draft
        shortest = shortest_match(self._setting if setting is None else setting)
        return None if shortest is None else NgramDrafter(shortest, self._memory)

    def _best(self, gains: Sequence[tuple[float, int]], num_rows: Sequence[int]) -> int:
        """Return how many of the likeliest drafts give most tokens per second."""
        base = sum(num_rows)
        seconds = self._costs.seconds(base)
        if seconds is None:
            return 0
        best, best_rate = 0, _WORTH_IT * len(num_rows) / seconds
        for size in _SIZES:
            count = size - base
            if 0 < count <= len(gains):
                chosen = gains[:count]
                expected = len(num_rows) + sum(chance for chance, _ in chosen)
                rate = expected / self._seconds(size, seconds, chosen, num_rows)
                if rate > best_rate:
                    best, best_rate = count, rate
        return best

    def _seconds(
        self,
        size: int,
        base_seconds: float,
        chosen: Sequence[tuple[float, int]],
        num_rows: Sequence[int],
    ) -> float:
        """Estimate a step with drafts, and what it makes later ones compute again."""
        seconds = self._costs.seconds(size) or base_seconds
        if self._cache.states is None:
            return seconds
        again = 0.0
        for place, own_rows in enumerate(num_rows):
            chances = [1.0, *(chance for chance, each in chosen if each == place)]
            # After a wrong draft, the rows up to it are computed again for the state after them.
            again += sum(
                (before - after) * (own_rows + number)
                for number, (before, after) in enumerate(pairwise(chances))
            )
        return seconds + again * max(0.0, seconds - base_seconds) / len(chosen)
