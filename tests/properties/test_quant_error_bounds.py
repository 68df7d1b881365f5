"""decode(encode(x)) stays within the bound that each format states for its encoder."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from powerinfer import quant

LIMITS = {
    "f32": 3e38,
    "f16": 65504.0,
    "bf16": 3e38,
    "mxfp4": 3e38,
    "q4_0": 8 * 65504.0,
    "q4_1": 65504.0,
    "q5_0": 16 * 65504.0,
    "q5_1": 65504.0,
    "q8_0": 127 * 65504.0,
    "q4_k": 63 * 65504.0,
    "q5_k": 63 * 65504.0,
    "q6_k": 127 * 31 * 65504.0,
    "lowbit2": 32752.0,
    "lowbit3": 32752.0,
    "sign": 65504.0,
}


def rows(limit: float) -> st.SearchStrategy[np.ndarray]:
    """One or two rows of 256 numbers of any mix of sizes up to `limit`, subnormals included."""
    bound = float(np.float32(limit))
    shape = st.tuples(st.integers(1, 2), st.just(256))
    sizes = st.sampled_from([bound, 1.0, 1e-4, 1e-7, 1e-38]).map(lambda x: float(np.float32(x)))
    return sizes.flatmap(
        lambda size: hnp.arrays(
            np.float32,
            shape,
            elements=st.floats(-min(size, bound), min(size, bound), width=32),
        )
    )


@pytest.mark.parametrize("name", list(LIMITS))
@given(data=st.data())
def test_error_is_within_the_stated_bound(name: str, data: st.DataObject) -> None:
    values = data.draw(rows(LIMITS[name]))
    fmt = quant.get_format(name)
    back = fmt.decode(fmt.encode(values)).astype(np.float64)
    error = np.abs(back - values.astype(np.float64))
    assert np.all(error <= fmt.max_error(values))


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("mxfp4", 0.2),
        ("q4_0", 0.12),
        ("q4_1", 0.08),
        ("q5_0", 0.06),
        ("q5_1", 0.04),
        ("q8_0", 0.008),
        ("bf16", 0.004),
        ("lowbit2", 0.9),
    ],
)
def test_bound_is_not_slack(name: str, share: float) -> None:
    """For ordinary weights the bound is of the order of the format's step, not a blank cheque."""
    values = np.random.default_rng(3).standard_normal((16, 256)).astype(np.float32)
    bound = quant.get_format(name).max_error(values)
    assert float(np.median(bound / np.abs(values).max())) < share


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "mxfp4", "q4_0", "q8_0"])
@given(data=st.data())
def test_encode_is_stable(name: str, data: st.DataObject) -> None:
    """What was decoded once encodes to the same numbers again where no rounding is left."""
    if name in ("q4_0", "q8_0"):
        # Scales are rounded once more there; numbers that are exact multiples are not.
        codes = data.draw(hnp.arrays(np.int8, (1, 32), elements=st.integers(-8, 7)))
        codes[0, 0] = -8 if name == "q4_0" else 127
        values = codes.astype(np.float32) * np.float32(0.25)
    else:
        values = data.draw(rows(1.0))
    fmt = quant.get_format(name)
    once = fmt.decode(fmt.encode(values))
    assert np.array_equal(fmt.decode(fmt.encode(once)), once)
