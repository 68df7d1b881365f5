"""Silu and gelu of which small values count as zero: limits of the gate, and the reference."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.ops.cpu.cut_activation import silent_below
from powerinfer.ops.reference.ffn import activate, fires
from powerinfer.values import Activation, ActivationKind

CUTTABLE = (ActivationKind.SILU, ActivationKind.GELU)
thresholds = st.one_of(
    st.floats(1e-9, 2.0),
    st.floats(1e-3, 1e6),
    # Around the depth of the dips, where the interval closes.
    st.floats(0.16, 0.18),
    st.floats(0.27, 0.29),
)


@pytest.mark.parametrize("kind", CUTTABLE)
@given(threshold=thresholds, seed=st.integers(0, 1 << 30))
def test_limits_of_gates_are_those_of_values(
    kind: ActivationKind, threshold: float, seed: int
) -> None:
    """Every f32, those next to a limit too, is on the side where its value is."""
    activation = Activation(kind, threshold)
    top, (begin, end) = silent_below(activation)
    limits = np.array([top, begin, end], np.float32)
    assert limits.tolist() == [top, begin, end]
    near = [limits]
    for direction in (-math.inf, math.inf):
        moved = limits
        for _ in range(4):
            moved = np.nextafter(moved, np.float32(direction))
            near.append(moved)
    spread = np.random.default_rng(seed).normal(size=200) * np.repeat([0.1, 1, 4, 1e3], 50)
    gates = np.concatenate([*near, spread]).astype(np.float32)
    kept = ~(gates < np.float32(top)) | ((np.float32(begin) <= gates) & (gates <= np.float32(end)))
    np.testing.assert_array_equal(kept, fires(activation, gates))


@pytest.mark.parametrize("kind", CUTTABLE)
@given(threshold=thresholds)
def test_values_that_are_kept_are_not_changed(kind: ActivationKind, threshold: float) -> None:
    gates = np.linspace(-9, 9, 101)[np.newaxis]
    full = activate(Activation(kind), gates, np.full_like(gates, 3.0))
    cut = activate(Activation(kind, threshold), gates, np.full_like(gates, 3.0))
    is_kept = fires(Activation(kind, threshold), gates)
    np.testing.assert_array_equal(cut, np.where(is_kept, full, 0.0))
    np.testing.assert_array_equal(is_kept, np.abs(full / 3.0) >= threshold * (1 - 1e-15))


def test_values_known_by_hand() -> None:
    """silu(1) = 0.7311, silu(0.5) = 0.3112, silu(-1) = -0.2689, silu(-3) = -0.1423."""
    gates = np.array([[1.0, 0.5, 0.0, -1.0, -3.0, -9.0, np.nan]])
    kept = fires(Activation(ActivationKind.SILU, 0.2), gates)
    assert kept.tolist() == [[True, True, False, True, False, False, True]]
    assert not fires(Activation(ActivationKind.SILU, 0.3), gates)[0, 3]
    top, (begin, end) = silent_below(Activation(ActivationKind.SILU, 0.1))
    assert (top, begin, end) == pytest.approx((0.1832555, -3.5372596, -0.2252655), rel=1e-6)


def test_a_threshold_of_zero_and_other_functions_are_as_ever() -> None:
    for kind in ActivationKind:
        assert silent_below(Activation(kind)) == (0.0, (1.0, 0.0))
        assert not Activation(kind).is_cut
    assert silent_below(Activation(ActivationKind.FATRELU, 0.01)) == (0.01, (1.0, 0.0))
    gates = np.array([[-1.0, 0.0, 1.0]])
    assert fires(Activation(ActivationKind.SILU), gates).all()
    assert fires(Activation(ActivationKind.CLAMPED_SWIGLU), gates).all()
    assert not Activation(ActivationKind.CLAMPED_SWIGLU, 0.1).is_sparse
