"""What the choice of a token asks of all logits, against a stable sort."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.errors import ShapeError
from powerinfer.ops.cpu.logits import all_finite, write_largest
from powerinfer.values import FloatArray

# Around the sizes of blocks and groups, and two vocabularies.
SIZES = (1, 2, 63, 64, 65, 127, 1000, 4096, 49_153, 49_152)
# Few values make ties; zeros of both signs are one of them.
SPECIAL = (-np.inf, np.inf, np.nan, 0.0, -0.0, 1.0, -1.0, 3.4e38, -3.4e38, 1e-45, -1e-45)


def largest(logits: FloatArray, count: int) -> npt.NDArray[np.int64]:
    ids = np.full(count, -1, np.int64)
    write_largest(logits, ids)
    return ids


def by_sorting(logits: FloatArray, count: int) -> npt.NDArray[np.intp]:
    """The definition; numpy sorts NaN last, too."""
    return np.argsort(-logits, kind="stable")[:count]


def counts_of(size: int) -> list[int]:
    return sorted({count for count in (0, 1, 2, 5, 40, 700, size - 1, size) if 0 <= count <= size})


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "rising", "falling", "masked"])
def test_the_largest_are_those_of_a_stable_sort(size: int, kind: str) -> None:
    random = np.random.default_rng(size)
    logits = random.normal(size=size).astype(np.float32) * 5
    if kind == "ties":
        logits = np.round(logits)
    elif kind == "equal":
        logits[:] = -2.5
    elif kind in ("rising", "falling"):
        logits = np.sort(logits)[:: 1 if kind == "rising" else -1].copy()
    elif kind == "masked":
        logits[random.random(size) < 0.999] = -np.inf
    for count in counts_of(size):
        np.testing.assert_array_equal(largest(logits, count), by_sorting(logits, count))


@given(
    values=st.lists(st.sampled_from(SPECIAL) | st.floats(-30, 30, width=32), max_size=300),
    repeats=st.integers(1, 20),
    share=st.floats(0, 1),
)
def test_any_numbers_are_sorted(values: list[float], repeats: int, share: float) -> None:
    logits = np.tile(np.array(values, np.float32), repeats)
    count = int(share * len(logits))
    np.testing.assert_array_equal(largest(logits, count), by_sorting(logits, count))
    assert all_finite(logits) == bool(np.isfinite(logits).all())


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("size", [1, 63, 1000])
def test_one_bad_number_anywhere_is_found(bad: float, size: int) -> None:
    values = np.full(size, -3.4028235e38, np.float32)
    assert all_finite(values)
    for place in {0, size // 2, size - 1}:
        damaged = values.copy()
        damaged[place] = bad
        assert not all_finite(damaged)


def test_numbers_may_have_any_shape() -> None:
    values = np.zeros((3, 5), np.float32)
    assert all_finite(values)
    values[2, 4] = np.inf
    assert not all_finite(values)
    assert all_finite(np.zeros((0, 5), np.float32))


def test_there_are_no_more_ids_than_logits() -> None:
    with pytest.raises(ShapeError, match="room for 4 ids, but there are only 3 logits"):
        write_largest(np.zeros(3, np.float32), np.empty(4, np.int64))


def test_other_arrays_are_refused() -> None:
    with pytest.raises(TypeError):
        write_largest(np.zeros(3), np.empty(2, np.int64))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        write_largest(np.zeros(6, np.float32)[::2], np.empty(2, np.int64))
