"""What importances do to encoders, and what K-quants promise for any numbers."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from encoder_cases import importance, numbers_of_kind
from powerinfer import quant
from powerinfer.errors import NumericsError, ShapeError
from powerinfer.values import FloatArray

SEARCHED = ("q4_k", "q5_k", "q6_k")
WEIGHTED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", *SEARCHED)


def error(name: str, values: FloatArray, weights: FloatArray | None) -> FloatArray:
    fmt = quant.get_format(name)
    off: FloatArray = fmt.decode(fmt.encode(values, weights)) - values
    return off


@pytest.mark.parametrize("name", WEIGHTED)
def test_importance_moves_the_error_to_other_columns(name: str) -> None:
    values = numbers_of_kind("normal")
    weights = np.ones(2048, np.float32)
    weights[::8] = 100
    before, after = (np.square(error(name, values, w)) for w in (None, weights))
    assert after[:, ::8].sum() < 0.8 * before[:, ::8].sum()
    assert (weights * after).sum() < (weights * before).sum()


@pytest.mark.parametrize("name", WEIGHTED)
def test_only_ratios_within_a_block_matter(name: str) -> None:
    fmt, values, weights = quant.get_format(name), numbers_of_kind("odd"), importance(100)
    wanted = fmt.encode(values, weights)
    assert np.array_equal(fmt.encode(values, weights * np.float32(2.0**20)), wanted)
    assert np.array_equal(fmt.encode(values, weights * np.float32(2.0**-60)), wanted)
    by_block = np.repeat(np.exp2(np.arange(2048 // fmt.block_size) % 9), fmt.block_size)
    assert np.array_equal(fmt.encode(values, weights * by_block.astype(np.float32)), wanted)


@pytest.mark.parametrize("name", SEARCHED)
def test_equal_importances_and_none_change_nothing(name: str) -> None:
    fmt, values = quant.get_format(name), numbers_of_kind("heavy_tailed")
    wanted = fmt.encode(values)
    for value in (0.0, 3.0):
        assert np.array_equal(fmt.encode(values, np.full(2048, value, np.float32)), wanted)


@pytest.mark.parametrize("name", WEIGHTED)
def test_columns_without_importance_are_still_encoded(name: str) -> None:
    values = numbers_of_kind("normal")
    weights = importance(10)
    weights[::3] = 0
    weights[:512] = 0
    off = error(name, values, weights)
    assert np.square(off).sum() < 0.1 * np.square(values).sum()


def test_formats_that_choose_nothing_ignore_importances() -> None:
    values = numbers_of_kind("normal")
    for name in ("f32", "f16", "bf16", "mxfp4"):
        fmt = quant.get_format(name)
        assert np.array_equal(fmt.encode(values, importance(10)), fmt.encode(values))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_importances_that_weigh_nothing_are_refused(bad: float) -> None:
    fmt, values, weights = quant.get_format("q4_k"), numbers_of_kind("normal"), importance(10)
    weights[70] = bad
    with pytest.raises(NumericsError, match="importance of column 70"):
        fmt.encode(values, weights)
    with pytest.raises(ShapeError, match=r"f32\[2048\], got float32 of shape \(2047,\)"):
        fmt.encode(values, weights[1:])
    with pytest.raises(ShapeError, match="float64"):
        fmt.encode(values, importance(10).astype(np.float64))


@pytest.mark.parametrize("name", SEARCHED)
@given(data=st.data())
def test_errors_stay_within_the_range_of_a_block(name: str, data: st.DataObject) -> None:
    """For any numbers and importances: no number leaves the range of those around it by much."""
    size = data.draw(st.sampled_from([4e6, 1.0, 1e-3]))
    bound = float(np.float32(size))
    values = data.draw(
        hnp.arrays(np.float32, (1, 256), elements=st.floats(-bound, bound, width=32))
    )
    weights = data.draw(
        hnp.arrays(np.float32, 256, elements=st.floats(0, 1000, width=32)) | st.none()
    )
    fmt = quant.get_format(name)
    decoded = fmt.decode(fmt.encode(values, weights))
    assert np.isfinite(decoded).all()
    reach = max(float(np.abs(values).max()), 2.0**-14)
    assert np.abs(decoded).max() <= 2 * reach
