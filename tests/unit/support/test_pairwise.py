"""The cases that stand for a product hold every pair of values, and are few."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairwise import covering_cases


def pairs(cases: list[tuple[int, ...]]) -> set[tuple[int, int, int, int]]:
    return {
        (a, b, case[a], case[b]) for case in cases for a, b in combinations(range(len(case)), 2)
    }


@given(st.lists(st.integers(1, 4), min_size=3, max_size=5), st.integers(0, 9))
def test_every_pair_of_a_product_is_covered(sizes: list[int], seed: int) -> None:
    cases = list(product(*map(range, sizes)))
    chosen = covering_cases(cases, seed)
    assert chosen == sorted(set(chosen))
    assert pairs([cases[index] for index in chosen]) == pairs(cases)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=40, unique=True))
def test_only_what_occurs_can_be_chosen(cases: list[tuple[int, ...]]) -> None:
    """Parameters may be bound to each other."""
    assert pairs([cases[index] for index in covering_cases(cases)]) == pairs(cases)


@pytest.mark.parametrize("num_parameters", [0, 1, 2])
def test_few_parameters_leave_nothing_out(num_parameters: int) -> None:
    cases = list(product(range(3), repeat=num_parameters))
    assert covering_cases(cases) == list(range(len(cases)))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.integers(0, 9))
def test_every_value_alone_is_covered_by_as_few_cases_as_can_be(
    sizes: list[int], seed: int
) -> None:
    cases = list(product(*map(range, sizes)))
    chosen = [cases[index] for index in covering_cases(cases, seed, together=1)]
    assert [len(set(values)) for values in zip(*chosen, strict=True)] == sizes
    assert len(chosen) == max(sizes)


def test_the_selection_is_small_and_fixed_by_its_seed() -> None:
    cases = list(product(range(4), repeat=5))
    chosen = covering_cases(cases)
    assert len(chosen) < 30, "16 would be the least, 1024 is all"
    assert chosen == covering_cases(cases)
    assert chosen != covering_cases(cases, seed=9)
