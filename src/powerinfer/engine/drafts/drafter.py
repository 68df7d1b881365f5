"""Sources of drafts, and where there may be any."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from powerinfer.loading.loader import LoadedModel

__all__ = ["MAX_ROWS", "NO_DRAFT", "Draft", "Drafter", "may_draft"]

MAX_ROWS = 8
"""Most rows of a step with drafts; a batch of as many texts gets none."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next.

    Attributes:
        token_ids: guesses in order; empty if there is none.
        levels: what speaks for each, in a measure of its source: the larger, the likelier it is
            right. The length of the match that it follows, or a probability.
    """

    token_ids: tuple[int, ...] = ()
    levels: Sequence[float] = ()

    def first(self, count: int) -> "Draft":
        """Return the first `count` guesses."""
        return Draft(self.token_ids[:count], self.levels[:count])


NO_DRAFT = Draft()


class Drafter(Protocol):
    """Guesses how one text goes on. A guess may be anything: a wrong one costs time, no bit."""

    def propose(self, token_ids: Sequence[int], most: int) -> Draft:
        """Guess the next tokens.

        Args:
            token_ids: prompt and answer so far. Each call has those of the last one and more.
            most: largest number of tokens that are of use.
        """
        ...


def may_draft(loaded: LoadedModel) -> bool:
    """Tell whether a row has the bits that it has alone; without that there are no drafts.

    Native kernels promise it, for every architecture and predictor. Numpy and GPUs round a row as
    the number of rows has it. Observers would see rows that are rejected.
    """
    return loaded.is_native_cpu and loaded.model.observer is None
