"""A product of two parameters of which the quick runs take a diagonal."""

from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet

__all__ = ["diagonal"]


def diagonal(first: Sequence[object], second: Sequence[object]) -> list[ParameterSet]:
    """Every pair, as two `parametrize` give them; those off the diagonal run with `--all` only.

    On it every value of both occurs. `pairwise.py` thins products of three parameters or more.
    """
    length = max(len(first), len(second))
    kept = {(number % len(first), number % len(second)) for number in range(length)}
    return [
        pytest.param(one, other, marks=() if (i, j) in kept else pytest.mark.thorough)
        for i, one in enumerate(first)
        for j, other in enumerate(second)
    ]
