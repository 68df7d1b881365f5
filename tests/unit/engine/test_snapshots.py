"""Where prompts leave their state: at the last message, where they part, and here and there."""

import pytest

from powerinfer.engine.snapshots import snapshot_positions

PROMPT = [True] * 1000


@pytest.mark.parametrize(
    ("start", "known", "ends", "interval", "expected"),
    [
        # Without messages the end of the prompt, and the ends of intervals.
        (0, 0, (), 1024, (1000,)),
        (0, 0, (), 300, (300, 600, 900, 1000)),
        (450, 450, (), 300, (600, 900, 1000)),
        # With messages the last of them; earlier ones that are a quarter of an interval apart.
        (0, 0, (100, 990), 1024, (990,)),
        (0, 0, (100, 400, 500, 990), 1024, (400, 990)),
        (0, 0, (100, 400, 500, 990), 400, (100, 400, 500, 800, 990)),
        (0, 0, (10, 20, 30, 40, 50, 990), 40, (40, 80, *range(120, 960, 40), 990)),
        # Where it leaves an earlier prompt, unless little would be saved or the state is known.
        (0, 700, (990,), 1024, (700, 990)),
        (690, 700, (990,), 1024, (990,)),
        (700, 700, (990,), 1024, (990,)),
        (0, 980, (990,), 1024, (980,)),
        # A short turn is computed with the next one.
        (970, 970, (990,), 1024, ()),
    ],
)
def test_positions(
    start: int, known: int, ends: tuple[int, ...], interval: int, expected: tuple[int, ...]
) -> None:
    assert snapshot_positions(PROMPT, start, known, ends, interval) == expected


def test_none_after_a_generated_token() -> None:
    is_prompt = [True] * 500 + [False] + [True] * 499
    assert snapshot_positions(is_prompt, 0, 800, (200, 600, 990), 200) == (200, 400)
