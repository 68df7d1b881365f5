"""Texts that end in a loop: the same tokens over and over."""

from collections.abc import Sequence

__all__ = ["LONGEST_TAIL", "loop_length"]

_LONGEST_LOOP = 128
# Rows of a table and lines of zeros repeat themselves too, but not for so long.
_LEAST_REPEATS = 4
_LEAST_TOKENS = 96
LONGEST_TAIL = _LONGEST_LOOP * _LEAST_REPEATS
"""Tokens at the end of a text that decide whether it ends in a loop."""


def loop_length(token_ids: Sequence[int]) -> int | None:
    """The length of the loop in which a text ends; None if it ends in none.

    A loop is a cycle of up to 128 tokens that fills at least the last 96 tokens, and occurs there
    four times or more. It takes no longer than a few comparisons for each length.
    """
    for length in range(1, min(_LONGEST_LOOP, len(token_ids) // _LEAST_REPEATS) + 1):
        wanted = max(_LEAST_TOKENS, _LEAST_REPEATS * length)
        if wanted <= len(token_ids) and _has_period(token_ids, length, wanted):
            return length
    return None


def _has_period(token_ids: Sequence[int], period: int, last: int) -> bool:
    return all(
        token_ids[-index] == token_ids[-index - period] for index in range(1, last - period + 1)
    )
