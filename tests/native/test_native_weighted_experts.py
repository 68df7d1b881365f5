"""Experts that another device chose: listed neurons, given weights, no biases of down."""

import numpy as np
import pytest

from expert_cases import EXPERTS, ExpertCase, make_experts
from native_cases import given_rows, numbers, use_kernels
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.operands import ActiveIds
from powerinfer.values import Activation, ActivationKind, BoolArray, FloatArray
from tolerances import assert_close

HIDDEN, SIZE = ExpertCase().sizes
RELU = Activation(ActivationKind.RELU)
kinds = pytest.mark.parametrize("is_prompt", [False, True], ids=["decode", "prompt"])
layouts = pytest.mark.parametrize("is_transposed", [False, True], ids=["columns", "rows"])


def marks(num_tokens: int, is_prompt: bool) -> BoolArray | None:
    return given_rows(num_tokens) if is_prompt else None


def routed(ops: NativeOps, case: ExpertCase, x: FloatArray) -> FloatArray:
    """f32[num_tokens, EXPERTS]: what another device would hand over."""
    ids, chosen = ops.route(x, make_experts(ops, case))
    weights = np.zeros((len(x), EXPERTS), np.float32)
    np.put_along_axis(weights, ids.astype(np.int64), chosen, axis=1)
    return weights


def listed(num_tokens: int, neurons: BoolArray) -> ActiveIds:
    return ActiveIds.of_mask(np.broadcast_to(neurons, (num_tokens, len(neurons))))


@kinds
@layouts
@pytest.mark.parametrize("is_exact", [False, True], ids=["off", "exact"])
def test_two_halves_are_the_whole(
    kernels: str, is_exact: bool, is_transposed: bool, is_prompt: bool
) -> None:
    ops, x = use_kernels(kernels), numbers((9, HIDDEN), 3)
    case = ExpertCase(
        RELU, is_down_transposed=is_transposed, is_exact_sparse=is_exact, num_used=3, has_bias=True
    )
    ffn, weights = make_experts(ops, case), routed(ops, case, x)
    # Expert 1 lies here whole and expert 2 nowhere, the others are cut.
    here = np.random.default_rng(4).random(EXPERTS * SIZE) < 0.5
    here[SIZE : 2 * SIZE], here[2 * SIZE : 3 * SIZE] = True, False
    rows = marks(len(x), is_prompt)
    halves = [
        ops.weighted_ffn(x, ffn, listed(len(x), half), weights, rows) for half in (here, ~here)
    ]
    biases = ops.vector_values(ffn.down.bias).reshape(EXPERTS, HIDDEN)  # type: ignore[arg-type]
    whole = ops.ffn(x, ffn, None, rows)
    name = "one operation, bf16" if is_prompt else "one operation, float"
    assert_close(halves[0] + halves[1] + weights @ biases, whole, name)


@kinds
def test_a_down_of_which_no_column_is_listed_is_not_read(kernels: str, is_prompt: bool) -> None:
    ops, x = use_kernels(kernels), numbers((1, HIDDEN), 3)
    case = ExpertCase(is_down_transposed=False, num_used=3)
    ffn, weights = make_experts(ops, case), routed(ops, case, x)
    chosen, read = np.flatnonzero(weights[0]), []
    for count in (3, 1, 0):
        neurons = np.zeros((EXPERTS, SIZE), bool)
        neurons[chosen[:count]] = True
        before = ops.counters.bytes_read
        y = ops.weighted_ffn(x, ffn, listed(1, neurons.reshape(-1)), weights, marks(1, is_prompt))
        read.append(ops.counters.bytes_read - before)
        assert np.any(y) == (count > 0)
    expert_bytes = 3 * HIDDEN * SIZE * 4
    assert read == [3 * expert_bytes, expert_bytes, 0]


def test_a_weight_of_zero_is_an_expert_that_adds_nothing(kernels: str) -> None:
    ops, x = use_kernels(kernels), numbers((2, HIDDEN), 3)
    ffn = make_experts(ops, ExpertCase(num_used=3))
    weights = np.zeros((2, EXPERTS), np.float32)
    weights[0, 4], weights[1, 0] = 1.0, np.nan
    every = listed(2, np.ones(EXPERTS * SIZE, bool))
    y = ops.weighted_ffn(x, ffn, every, weights)
    only = np.zeros((EXPERTS, SIZE), bool)
    only[4] = True
    alone = ops.weighted_ffn(x, ffn, listed(2, only.reshape(-1)), weights)
    np.testing.assert_array_equal(y[0], alone[0])
    assert np.isnan(y[1]).all()
