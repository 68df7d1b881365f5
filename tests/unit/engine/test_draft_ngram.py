"""What followed the same tokens before."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.engine.drafts.drafter import NO_DRAFT
from powerinfer.engine.drafts.ngram import AnswerMemory, NgramDrafter, shortest_match

some_tokens = st.lists(st.integers(0, 3), max_size=80)


def _by_hand(token_ids: list[int], shortest: int, most: int) -> tuple[int, ...]:
    """The definition: the longest of three lengths, the latest place, the text repeated."""
    for size in (shortest + 5, shortest + 2, shortest):
        for place in range(len(token_ids) - 1, size - 1, -1):
            if token_ids[place - size : place] == token_ids[-size:]:
                follows = token_ids[place:]
                return tuple((follows * most)[:most])
    return ()


@given(some_tokens, st.integers(1, 6), st.integers(1, 7), st.integers(0, 2**32 - 1))
def test_the_latest_of_the_longest_matches(
    token_ids: list[int], shortest: int, most: int, seed: int
) -> None:
    """However the text grew."""
    drafter, end = NgramDrafter(shortest), 0
    random = np.random.default_rng(seed)
    while end < len(token_ids):
        end = min(len(token_ids), end + int(random.integers(1, 20)))
        draft = drafter.propose(token_ids[:end], most)
        assert draft.token_ids == _by_hand(token_ids[:end], shortest, most)
        assert not draft.token_ids or min(draft.levels) >= shortest


def test_a_draft_repeats_what_lies_between() -> None:
    assert NgramDrafter(2).propose([1, 2, 3, 1, 2, 3, 1, 2], 7).token_ids == (3, 1, 2, 3, 1, 2, 3)
    assert NgramDrafter(3).propose([7, 7, 7, 7], 3).token_ids == (7, 7, 7)


def test_past_answers_count_where_they_match_longer() -> None:
    memory = AnswerMemory(2)
    memory.add([1, 2, 3, 4, 5])
    memory.add([2, 3, 9])
    drafter = NgramDrafter(2, memory)
    # No draft goes on in the answer after that.
    assert drafter.propose([8, 2, 3, 4], 7).token_ids == (5,)
    assert drafter.propose([8, 2, 3, 4, 6, 3, 4], 7).token_ids == (6, 3, 4, 6, 3, 4, 6)
    assert NgramDrafter(2, memory).propose([5, 2], 7) == NO_DRAFT
    assert NgramDrafter(2).propose([8, 2, 3, 4], 7) == NO_DRAFT


def test_old_answers_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("powerinfer.engine.drafts.ngram._MOST_INDEXED", 40)
    memory = AnswerMemory(2)
    for number in range(30):
        memory.add([number, 100, 101 + number])
        assert len(memory.token_ids) <= 44
    assert NgramDrafter(2, memory).propose([29, 100], 7).token_ids == (130,)
    assert NgramDrafter(2, memory).propose([0, 100], 7) == NO_DRAFT


def test_settings() -> None:
    names = ("off", "auto", "ngram", "ngram:1", "ngram:12")
    assert [shortest_match(name) for name in names] == [None, 3, 3, 1, 12]
