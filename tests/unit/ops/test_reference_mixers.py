"""The numpy reference of mixers with a state, against formulas written out by hand."""

import math

import numpy as np
import numpy.typing as npt
import pytest

from powerinfer.errors import PowerInferError
from powerinfer.ops.operands import DeltaRule, SelectiveScan, ShortConv
from powerinfer.ops.reference.ops import ReferenceOps, ReferenceState
from powerinfer.values import Batch, FloatArray

OPS = ReferenceOps()


def f32(values: npt.ArrayLike) -> FloatArray:
    return np.array(values, np.float32)


def one_sequence(num_tokens: int, source: int, target: int) -> Batch:
    ids = np.zeros(num_tokens, np.int32)
    slots = (np.array([slot], np.int32) for slot in (source, target))
    return Batch(ids, ids, ids, np.zeros((1, 1), np.int32), None, *slots)


def numbers(seed: int, *shape: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_a_short_convolution_sees_the_last_columns() -> None:
    (state,) = OPS.new_state_layers([4], 2)
    conv = ShortConv(f32([1, 10, 100, 2, 20, 200]), 3)
    b, c, u = f32([[1, 2], [3, 1]]), f32([[1, 1], [2, 1]]), f32([[5, 3]] * 2)
    got = OPS.short_conv(np.concatenate([b, c, u], axis=1), conv, state, one_sequence(2, -1, 1))
    np.testing.assert_array_equal(got, [[500, 1200], [2 * (1500 + 50), 600 + 120]])
    np.testing.assert_array_equal(state.slots, [[0] * 4, [5, 6, 15, 3]])
    more = OPS.short_conv(f32([[1, 1, 1, 1, 1, 1]]), conv, state, one_sequence(1, 1, 0))
    np.testing.assert_array_equal(more, [[5 + 150 + 100, 12 + 60 + 200]])
    np.testing.assert_array_equal(state.slots, [[15, 3, 1, 1], [5, 6, 15, 3]])


RULE: DeltaRule[FloatArray] = DeltaRule(
    conv=numbers(1, 16 * 2) + 1,
    a=f32([-0.5, -1.5]),
    dt_bias=f32([0.5, -0.25]),
    norm=f32([1, 2, 0.5, 1.5]),
    eps=1e-3,
    num_taps=2,
    num_key_heads=1,
    num_value_heads=2,
    key_dim=4,
    value_dim=4,
)


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def by_hand(mixed: FloatArray, gate: FloatArray, beta: FloatArray, alpha: FloatArray) -> FloatArray:
    """The rule with loops over everything, S as in the formulas: S[head][key][value]."""
    states = np.zeros((2, 4, 4))
    taps, before, out = RULE.conv.reshape(16, 2), np.zeros(16), np.zeros(gate.shape)
    for t, row in enumerate(mixed):
        x = [silu(taps[c, 0] * before[c] + taps[c, 1] * row[c]) for c in range(16)]
        before = row
        q, k = np.array(x[:4]), np.array(x[4:8])
        q = q / math.sqrt(q @ q + 1e-6) / 2
        k = k / math.sqrt(k @ k + 1e-6)
        for head in range(2):
            step = math.log1p(math.exp(alpha[t, head] + RULE.dt_bias[head]))
            state = states[head] * math.exp(RULE.a[head] * step)
            v = np.array(x[8 + 4 * head : 12 + 4 * head])
            delta = (v - state.T @ k) / (1 + math.exp(-beta[t, head]))
            states[head] = state + np.outer(k, delta)
            o = states[head].T @ q
            o = o / math.sqrt(o @ o / 4 + RULE.eps) * RULE.norm
            z = gate[t, 4 * head : 4 * head + 4]
            out[t, 4 * head : 4 * head + 4] = [o[i] * silu(z[i]) for i in range(4)]
    return out.astype(np.float32)


def inputs(num_tokens: int) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    shapes = [(num_tokens, 16), (num_tokens, 8), (num_tokens, 2), (num_tokens, 2)]
    mixed, gate, beta, alpha = (numbers(2 + i, *shape) for i, shape in enumerate(shapes))
    return mixed, gate, beta, alpha


def run(first: int, last: int, source: int, target: int, state: ReferenceState) -> FloatArray:
    mixed, gate, beta, alpha = (x[first:last] for x in inputs(9))
    batch = one_sequence(last - first, source, target)
    return OPS.delta_rule(mixed, gate, beta, alpha, RULE, state, batch)


def test_a_delta_rule() -> None:
    (state,) = OPS.new_state_layers([16 + 32], 1)
    np.testing.assert_allclose(run(0, 9, -1, 0, state), by_hand(*inputs(9)), rtol=2e-5, atol=1e-6)


def test_a_delta_rule_may_be_cut_anywhere() -> None:
    (state,) = OPS.new_state_layers([16 + 32], 4)
    whole = run(0, 9, -1, 3, state)
    parts = [run(0, 1, -1, 0, state), run(1, 6, 0, 1, state), run(6, 9, 1, 2, state)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(state.slots[2], state.slots[3])


def test_a_large_step_forgets() -> None:
    """Softplus does not overflow."""
    mixed, gate, beta, alpha = inputs(2)
    alpha[:] = 300
    (state,) = OPS.new_state_layers([16 + 32], 2)
    state.slots[0] = numbers(7, 48)
    whole = OPS.delta_rule(mixed, gate, beta, alpha, RULE, state, one_sequence(2, 0, 1))
    state.slots[0, 16:] = 0
    np.testing.assert_array_equal(
        OPS.delta_rule(mixed, gate, beta, alpha, RULE, state, one_sequence(2, 0, 1)), whole
    )


SCAN: SelectiveScan[FloatArray] = SelectiveScan(
    conv=numbers(11, 20 * 2) + 1,
    conv_bias=numbers(12, 20),
    a=f32([-0.5, -1.5, -0.1, -3]),
    skip=f32([1, 0.5, -2, 0]),
    dt_bias=f32([0.5, -0.25, 1, -2]),
    norm=numbers(13, 8) + 1,
    eps=1e-3,
    num_taps=2,
    num_groups=2,
    num_heads=4,
    head_dim=2,
    state_dim=3,
)


def scan_by_hand(rows: FloatArray) -> FloatArray:
    """The scan with loops over everything; columns are z 8, x 8, b 6, c 6, dt 4."""
    assert SCAN.conv_bias is not None
    states, before, out = np.zeros((4, 2, 3)), np.zeros(20), np.zeros((len(rows), 8))
    taps = SCAN.conv.reshape(20, 2)
    for t, row in enumerate(rows):
        mixed = row[8:28]
        v = [
            silu(taps[i, 0] * before[i] + taps[i, 1] * mixed[i] + SCAN.conv_bias[i])
            for i in range(20)
        ]
        before = mixed
        for head in range(4):
            group = head // 2
            b, c = v[8 + 3 * group : 11 + 3 * group], v[14 + 3 * group : 17 + 3 * group]
            step = math.log1p(math.exp(row[28 + head] + SCAN.dt_bias[head]))
            for p in range(2):
                x = v[2 * head + p]
                for n in range(3):
                    state = states[head, p, n] * math.exp(SCAN.a[head] * step)
                    states[head, p, n] = state + step * x * b[n]
                y = sum(states[head, p, n] * c[n] for n in range(3)) + SCAN.skip[head] * x
                out[t, 2 * head + p] = y * silu(row[2 * head + p])
        for half in (out[t, :4], out[t, 4:]):
            half /= math.sqrt(sum(y * y for y in half) / 4 + SCAN.eps)
    return (out * SCAN.norm).astype(np.float32)


def test_a_selective_scan() -> None:
    (state,) = OPS.new_state_layers([20 + 24], 4)
    x = numbers(14, 9, 32)
    whole = OPS.selective_scan(x, SCAN, state, one_sequence(9, -1, 3))
    np.testing.assert_allclose(whole, scan_by_hand(x), rtol=2e-5, atol=1e-6)
    parts = [
        OPS.selective_scan(x[first:last], SCAN, state, one_sequence(last - first, source, target))
        for first, last, source, target in ((0, 1, -1, 0), (1, 6, 0, 1), (6, 9, 1, 2))
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(state.slots[2], state.slots[3])


def test_gate() -> None:
    x, g = f32([[2, 4], [1, -3]]), f32([[0.0, math.log(3)], [-200.0, 200.0]])
    OPS.gate(x, g)
    np.testing.assert_allclose(x, [[1, 3], [0, -3]], rtol=1e-6)


def test_a_batch_must_name_slots() -> None:
    ids = np.zeros(1, np.int32)
    (state,) = OPS.new_state_layers([2], 1)
    conv = ShortConv(np.zeros(6, np.float32), 3)
    with pytest.raises(PowerInferError, match="slots"):
        OPS.short_conv(np.zeros((1, 3), np.float32), conv, state, Batch(ids, ids, ids, ids[None]))
