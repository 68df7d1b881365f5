"""Sources of drafts, and where there may be any."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from powerinfer.loading.loader import LoadedModel

__all__ = ["NO_DRAFT", "Draft", "Drafter", "may_draft"]


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens that may come next.

    Attributes:
        token_ids: guesses in order; empty if there is none.
        match_length: number of last tokens of the text that the guess follows from; the longer,
            the likelier it is right.
    """

    token_ids: tuple[int, ...] = ()
    match_length: int = 0


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
