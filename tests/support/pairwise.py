"""Which cases of a parametrised test stand for all of them: every pair of values occurs in one.

Most faults show with one value or with two together (Kuhn, Wallace, Gallo: Software Fault
Interactions and Implications for Software Testing, 2004). So a test over formats, kernels, shapes
and threads runs on a few dozen cases; `scripts/test --all` runs the whole product.
"""

import random
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import combinations

__all__ = ["SEED", "covering_cases"]

SEED = 2
"""Which of the smallest selections is drawn: another seed draws other cases for the same pairs."""

Values = tuple[tuple[int, int], ...]


def covering_cases(
    cases: Sequence[tuple[int, ...]], seed: int = SEED, *, together: int = 2
) -> list[int]:
    """Choose cases in which every pair of values of two parameters occurs that occurs at all.

    Greedy: the case with the most new pairs comes next, ties are drawn. Of one or two parameters
    everything is chosen.

    Args:
        cases: value numbers, one per parameter; all of one length.
        seed: of the draws.
        together: 1: every value occurs instead, in whatever company.

    Returns:
        Indices of `cases`, ascending.
    """
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    sets = [_sets(case, together) for case in cases]
    open_sets = {each for found in sets for each in found}
    if not open_sets:
        return sorted(order)
    # Gains only fall, so a gain that still holds is the best one.
    waiting = [(-len(sets[index]), place, index) for place, index in enumerate(order)]
    heapify(waiting)
    chosen = []
    while open_sets:
        _, place, index = heappop(waiting)
        gain = len(open_sets.intersection(sets[index]))
        if waiting and (-gain, place) > waiting[0][:2]:
            heappush(waiting, (-gain, place, index))
            continue
        chosen.append(index)
        open_sets.difference_update(sets[index])
    return sorted(chosen)


def _sets(case: tuple[int, ...], size: int) -> list[Values]:
    """Parameters of a case with their values, so many at a time."""
    return list(combinations(enumerate(case), size))
