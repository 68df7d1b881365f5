"""How likely drafted tokens of a text are right, learned from those that came."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import mul

from powerinfer.engine.drafts.drafter import NO_DRAFT, Draft

__all__ = ["OF_MATCHES", "OF_PROBABILITIES", "Acceptance", "Guess", "Levels", "Share", "Source"]

Levels = tuple[tuple[float, ...], tuple[float, ...]]
"""Least levels of the classes after the first, and how likely a token of each class is right."""

OF_MATCHES: Levels = (5, 8, 16, 32), (0.3, 0.5, 0.7, 0.8, 0.9)
OF_PROBABILITIES: Levels = (0.3, 0.5, 0.7, 0.9), (0.2, 0.35, 0.5, 0.7, 0.9)


class Share:
    """A share of right tokens; older ones count less."""

    _WEIGHT = 4.0
    _KEPT = 0.93

    def __init__(self, expected: float) -> None:
        """Start with what is expected, which counts as much as a few tokens."""
        self._num_right, self._num_all = self._WEIGHT * expected, self._WEIGHT

    @property
    def value(self) -> float:
        """The share."""
        return self._num_right / self._num_all

    def add(self, *, is_right: bool) -> None:
        """Count a token."""
        self._num_right = self._KEPT * self._num_right + is_right
        self._num_all = self._KEPT * self._num_all + 1


class Acceptance:
    """How likely drafted tokens of a text are right, by what speaks for them (`Draft.levels`).

    It learns from drafts that no step computed as well: the text shows which were right.

    Attributes:
        mean: share of the drafted tokens before the first wrong one, and of it.
    """

    def __init__(self, levels: Levels = OF_MATCHES, mean: float = 0.5) -> None:
        """Start with what is expected.

        Args:
            mean: of all levels.
        """
        self._bounds, expected = levels
        self._shares = [Share(each) for each in expected]
        self.mean = Share(mean)

    def chance(self, level: float) -> float:
        """Return the probability that a token of this level is right, if those before it are."""
        return self._share(level).value

    def chances(self, draft: Draft) -> list[float]:
        """Return for each token of a draft the probability that it and all before it are right."""
        return list(accumulate(map(self.chance, draft.levels), mul))

    def learn(self, draft: Draft, token_ids: Sequence[int]) -> None:
        """Compare a draft with the tokens that came."""
        for drafted, level, chosen in zip(draft.token_ids, draft.levels, token_ids, strict=False):
            self.add(level, is_right=drafted == chosen)
            if drafted != chosen:
                return

    def add(self, level: float, *, is_right: bool) -> None:
        """Learn from one guess that followed the text's own tokens."""
        self._share(level).add(is_right=is_right)
        self.mean.add(is_right=is_right)

    def _share(self, level: float) -> Share:
        return self._shares[bisect_right(self._bounds, level)]


@dataclass(frozen=True, slots=True)
class Guess:
    """Drafts of a text in a step.

    Attributes:
        token_ids: empty while they are only expected.
        chances: for each, the probability that it and all before it are right.
    """

    token_ids: Sequence[int] = ()
    chances: Sequence[float] = ()


class Source:
    """Learns how good a source's drafts are for a text.

    Attributes:
        acceptance: what it has learned.
    """

    def __init__(self, acceptance: Acceptance) -> None:
        """Start with what is expected."""
        self.acceptance = acceptance
        self._last = 0, NO_DRAFT

    def note(self, length: int, draft: Draft) -> Guess:
        """Remember a draft for a text of this many tokens, and say how good it is."""
        self._last = length, draft
        return Guess(draft.token_ids, self.acceptance.chances(draft))

    def learn(self, token_ids: Sequence[int], *, is_last: bool) -> None:
        """Learn from the last draft, once it is certain how much of it is right.

        Args:
            is_last: it is to be replaced.
        """
        length, draft = self._last
        came = tuple(token_ids[length : length + len(draft.token_ids)])
        if is_last or len(came) == len(draft.token_ids) or came != draft.token_ids[: len(came)]:
            self.acceptance.learn(draft, came)
            self._last = 0, NO_DRAFT
