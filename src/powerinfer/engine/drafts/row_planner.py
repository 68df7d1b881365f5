"""How many rows of a step pay, by what their drafts are likely to give and what rows cost."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from powerinfer.engine.costs import RowCosts
from powerinfer.engine.drafts.acceptance import Guess

__all__ = ["RowChoice", "RowPlanner"]

# Rows of steps with drafts: few numbers, since each is measured, and recorded as one native call.
_SIZES = (2, 3, 4, 6, 8)
# Drafts must be expected to win this much, as all that is known is estimated.
_WORTH_IT = 1.03


@dataclass(frozen=True, slots=True)
class RowChoice:
    """Drafts that a step computes.

    Attributes:
        counts: number of drafts of each text that has some, by its place.
        rate: expected tokens per second of all texts; without drafts a little more, as drafts must
            win something.
    """

    counts: Mapping[int, int]
    rate: float


class RowPlanner:
    """Chooses the drafts that give most tokens per second.

    Attributes:
        costs: how long steps take.
    """

    def __init__(self, *, has_states: bool) -> None:
        """Start without knowledge.

        Args:
            has_states: after a wrong draft, a step computes rows again for the state after them.
        """
        self.costs = RowCosts()
        self._has_states = has_states

    def best(
        self,
        guesses: Sequence[Guess],
        num_rows: Sequence[int],
        drafting: Callable[[Mapping[int, int]], float] = lambda _: 0.0,
    ) -> RowChoice | None:
        """Return which of the likeliest drafts are best; None before anything is known.

        Args:
            num_rows: rows of each text without drafts.
            drafting: seconds that it takes to make drafts, by number for each place.
        """
        gains = [(chance, place) for place, guess in enumerate(guesses) for chance in guess.chances]
        gains.sort(key=itemgetter(0), reverse=True)
        base = sum(num_rows)
        seconds = self.costs.seconds(base)
        if seconds is None:
            return None
        best = RowChoice({}, _WORTH_IT * len(num_rows) / seconds)
        for size in _SIZES:
            count = size - base
            if 0 < count <= len(gains):
                chosen = gains[:count]
                counts = Counter(place for _, place in chosen)
                expected = len(num_rows) + sum(chance for chance, _ in chosen)
                taken = self._seconds(size, seconds, chosen, num_rows) + drafting(counts)
                if expected / taken > best.rate:
                    best = RowChoice(counts, expected / taken)
        return best

    def _seconds(
        self,
        size: int,
        base_seconds: float,
        chosen: Sequence[tuple[float, int]],
        num_rows: Sequence[int],
    ) -> float:
        """Estimate a step with drafts, and what it makes later ones compute again."""
        seconds = self.costs.seconds(size) or base_seconds
        if not self._has_states:
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
