"""Where prompts leave their state for later ones, on models with recurrent layers.

A step ends at each of these positions. One that few tokens follow costs about as much as the tokens
that it may save, so they keep their distance.
"""

from collections.abc import Iterable, Sequence

__all__ = ["snapshot_positions"]

# A step of fewer tokens takes about as long as one of this many, as it reads all weights.
_SMALLEST_STEP = 32
# Ends of earlier messages are as likely to be used as the ends of intervals, but hardly more.
_PER_INTERVAL = 4


def snapshot_positions(
    is_prompt: Sequence[bool], start: int, num_known: int, ends: Sequence[int], interval: int
) -> tuple[int, ...]:
    """Choose numbers of tokens of a prompt after which to keep the state, ascending.

    The last message's end is where the next turn goes on, and `num_known` is where this prompt
    leaves an earlier one, as others may do. They are chosen, the latter first, unless very near to
    `start` or to each other; then ends of earlier messages and of intervals that are far enough
    from all others. The end of a prompt without messages costs no step of its own.

    Args:
        is_prompt: kind of each token; only states of prompt tokens alone are kept.
        start: number of tokens whose state is known.
        num_known: number of tokens whose keys and values are known.
        ends: ends of messages, ascending.
        interval: tokens between two states of a long text.
    """
    length = next((i for i, kind in enumerate(is_prompt) if not kind), len(is_prompt))
    last = ends[-1] if ends else len(is_prompt)
    wanted = _apart((num_known, last), [start], _SMALLEST_STEP)
    others = (*ends, *range(interval, length, interval))
    chosen = _apart(others, wanted, max(_SMALLEST_STEP, interval // _PER_INTERVAL))
    return tuple(sorted(each for each in chosen if start < each <= length))


def _apart(positions: Iterable[int], taken: Sequence[int], distance: int) -> list[int]:
    """Add the positions that keep a distance from all those before them."""
    chosen = list(taken)
    for each in positions:
        if all(abs(each - other) >= distance for other in chosen):
            chosen.append(each)
    return chosen
