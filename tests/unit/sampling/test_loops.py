"""Loops at the end of a text, and texts that only look like one."""

from hypothesis import given
from hypothesis import strategies as st

from powerinfer.sampling.loops import loop_length

_IDS = st.integers(0, 50)


@given(st.lists(_IDS), st.lists(_IDS, min_size=1, max_size=128), st.integers(0, 127))
def test_a_cycle_that_goes_on_is_a_loop(before: list[int], cycle: list[int], cut: int) -> None:
    repeats = max(4, -(-96 // len(cycle)))
    text = before + cycle * repeats + cycle[: cut % len(cycle)]
    found = loop_length(text)
    assert found is not None
    assert found <= len(cycle)
    assert text[-found:] == text[-2 * found : -found]


@given(st.lists(_IDS, max_size=95))
def test_a_short_text_has_none(text: list[int]) -> None:
    assert loop_length(text) is None


@given(st.lists(st.integers(60, 90), min_size=1, max_size=20), st.integers(1, 6))
def test_rows_of_a_table_are_none(row: list[int], columns: int) -> None:
    """Rows that begin with their number, of cells that are alike."""
    text = [token for number in range(40) for token in (number, *row[:12] * columns, 99)]
    assert loop_length(text) is None


def test_too_few_repeats_are_none() -> None:
    cycle = list(range(60))
    assert loop_length(cycle * 3 + cycle[:59]) is None
    assert loop_length(cycle * 4) == 60
    assert loop_length([7] * 95) is None
    assert loop_length([7] * 96) == 1
    assert loop_length([*range(500), *[7] * 96, 8]) is None
    assert loop_length(list(range(129)) * 8) is None
