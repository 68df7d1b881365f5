"""Drafts by looking up: where the last tokens occurred before, the same tokens may follow again."""

from collections.abc import Sequence
from itertools import takewhile

from powerinfer.engine.drafts.drafter import NO_DRAFT, Draft
from powerinfer.options.option_kinds import DRAFT_OFF, DRAFT_SHORTEST

__all__ = ["AnswerMemory", "NgramDrafter", "NgramIndex", "shortest_match"]

# The shortest match, and how much longer those are that count before it.
_LONGER = (5, 2, 0)
# Longer matches say no more.
_LONGEST_MATCH = 64
# Of longer texts the beginning is not indexed.
_MOST_INDEXED = 1 << 17
# Stands between answers; no token.
_GAP = -1


def shortest_match(setting: str) -> int | None:
    """Return N of `ngram:N`, or its default; None if drafts are off."""
    if setting == DRAFT_OFF:
        return None
    _, _, length = setting.partition(":")
    return int(length) if length else DRAFT_SHORTEST


class NgramIndex:
    """Last occurrences of n-grams of three lengths, in a list of tokens that grows at its end."""

    def __init__(self, shortest: int) -> None:
        """Start empty.

        Args:
            shortest: number of tokens that a match has at least.
        """
        # Longest first; from the hash of an n-gram to the place after it.
        self._places = [(shortest + more, dict[int, int]()) for more in _LONGER]
        self._num_read: int | None = None

    def read(self, token_ids: Sequence[int]) -> None:
        """Index the n-grams that a token follows; ones that were read before cost nothing."""
        first = self._num_read
        if first is None:
            first = max(0, len(token_ids) - _MOST_INDEXED)
        for size, places in self._places:
            for end in range(max(first, size), len(token_ids)):
                places[hash(tuple(token_ids[end - size : end]))] = end
        self._num_read = len(token_ids)

    def find(self, token_ids: Sequence[int], source: Sequence[int]) -> tuple[int, int]:
        """Find the place in the indexed `source` that follows a match with the end of a text.

        Returns:
            The place, and the length of the match; zeros if there is none.
        """
        for size, places in self._places:
            place = places.get(hash(tuple(token_ids[-size:])))
            if place is not None:
                length = _num_equal_before(source, place, token_ids)
                if length >= size:
                    return place, length
        return 0, 0


def _num_equal_before(source: Sequence[int], place: int, token_ids: Sequence[int]) -> int:
    """Return how many tokens before a place are the last ones of a text."""
    most = min(place, len(token_ids), _LONGEST_MATCH)
    pairs = zip(source[place - most : place][::-1], token_ids[-most:][::-1], strict=True)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1] != _GAP, pairs))


class AnswerMemory:
    """Past answers of an engine, as a source of drafts for later ones.

    Attributes:
        token_ids: answers, one after the other, with gaps between them.
    """

    def __init__(self, shortest: int) -> None:
        """Start empty; see `NgramIndex`."""
        self._shortest = shortest
        self.token_ids: list[int] = []
        self.index = NgramIndex(shortest)

    def add(self, token_ids: Sequence[int]) -> None:
        """Remember an answer; the older half of all is forgotten when there are too many."""
        known = self.token_ids
        if len(known) > _MOST_INDEXED:
            known, self.index = known[_MOST_INDEXED // 2 :], NgramIndex(self._shortest)
        self.token_ids = [*known, *token_ids, _GAP]
        self.index.read(self.token_ids)


class NgramDrafter:
    """Guesses that what followed the last tokens before, in the text or in past answers, follows.

    The longest match counts, the latest of equal ones, and the text's own before others.
    """

    def __init__(self, shortest: int, memory: AnswerMemory | None = None) -> None:
        """Prepare for one text.

        Args:
            shortest: number of tokens that a match has at least.
            memory: past answers; None: of no use.
        """
        self._index = NgramIndex(shortest)
        self._memory = memory

    def propose(self, token_ids: Sequence[int], most: int) -> Draft:
        """See `Drafter.propose`."""
        self._index.read(token_ids)
        source, (place, length) = token_ids, self._index.find(token_ids, token_ids)
        if self._memory is not None:
            place_there, longer = self._memory.index.find(token_ids, self._memory.token_ids)
            if longer > length:
                source, place, length = self._memory.token_ids, place_there, longer
        if not length:
            return NO_DRAFT
        found = list(takewhile(lambda token_id: token_id != _GAP, source[place : place + most]))
        if source is token_ids and found:
            # A match that overlaps the end repeats what lies between.
            while len(found) < most:
                found.append(found[len(found) - (len(token_ids) - place)])
        return Draft(tuple(found), range(length, length + len(found)))
