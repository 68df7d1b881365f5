"""The numpy reference, which checks everything else, against formulas written out by hand."""

import math
from pathlib import Path

import numpy as np
import pytest

from powerinfer.errors import PowerInferError, ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.protocol import FFN, HeadNorms, KVType, Linear, MatrixUse, RopeTable
from powerinfer.ops.reference.ffn import ReferenceFFN, activate
from powerinfer.ops.reference.matrix import ReferenceLinear
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import Activation, ActivationKind, Batch, FloatArray

OPS = ReferenceOps()
X = np.array([[1.0, -2.0, 0.5, 3.0], [0.25, 4.0, -1.0, 2.0]], np.float32)


def tensor(values: FloatArray) -> Tensor:
    data = np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    return Tensor("t", values.shape, "f32", data, Path("made.gguf"))


def linear(rows: int, columns: int, seed: int, *, has_bias: bool = False) -> ReferenceLinear:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32)
    bias = np.linspace(-0.3, 0.4, rows, dtype=np.float32) if has_bias else None
    return Linear(OPS.matrix(tensor(values), MatrixUse.NEURONS), bias)


def one_token_batch(position: int, table: list[int]) -> Batch:
    zero = np.zeros(1, np.int32)
    return Batch(zero, np.array([position], np.int32), zero, np.array([table], np.int32))


def test_rms_norm() -> None:
    weight = np.array([1, 2, 3, 4], np.float32)
    got = OPS.rms_norm(X, weight, 0.5)
    root = math.sqrt((1 + 4 + 0.25 + 9) / 4 + 0.5)
    np.testing.assert_allclose(got[0], X[0] * weight / root, rtol=1e-6)


@pytest.mark.parametrize("bias", [None, np.array([1, 0, -1, 2], np.float32)])
def test_layer_norm(bias: FloatArray | None) -> None:
    weight = np.array([1, 2, 3, 4], np.float32)
    got = OPS.layer_norm(X, weight, bias, 0.25)
    mean = 2.5 / 4
    variance = sum((float(x) - mean) ** 2 for x in X[0]) / 4
    expected = (X[0] - mean) / math.sqrt(variance + 0.25) * weight
    np.testing.assert_allclose(got[0], expected if bias is None else expected + bias, rtol=1e-6)


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        (Activation(ActivationKind.SILU), [2 / (1 + math.exp(-2)), -1 / (1 + math.exp(1))]),
        (Activation(ActivationKind.GELU), [1.954598, -0.158808]),
        (Activation(ActivationKind.RELU), [2.0, 0.0]),
        (Activation(ActivationKind.DRELU), [2.0, 0.0]),
        (Activation(ActivationKind.RELU2), [4.0, 0.0]),
        (Activation(ActivationKind.FATRELU, 2.0), [2.0, 0.0]),
        (Activation(ActivationKind.FATRELU, 2.5), [0.0, 0.0]),
    ],
)
@pytest.mark.parametrize("is_gated", [True, False])
def test_activations(activation: Activation, expected: list[float], is_gated: bool) -> None:
    """Neurons that see 2 and -1; a gated one multiplies by up, which is 3 and (dReLU) -3."""
    identity: ReferenceLinear = Linear(
        OPS.matrix(tensor(np.eye(2, dtype=np.float32)), MatrixUse.DENSE)
    )
    x = np.array([[2.0, -1.0]], np.float32)
    for sign in (1.0, -1.0):
        up_values = np.diag([sign * 3.0 / 2.0, -sign * 3.0]).astype(np.float32)
        up = Linear(OPS.matrix(tensor(up_values), MatrixUse.DENSE)) if is_gated else identity
        factor = 3.0 * sign if is_gated else 1.0
        if is_gated and activation.kind is ActivationKind.DRELU:
            factor = max(0.0, factor)
        for is_exact in {False, activation.is_sparse}:
            ffn: ReferenceFFN = FFN(
                gate=identity if is_gated else None,
                up=up,
                down=identity,
                activation=activation,
                is_down_transposed=True,
                is_exact_sparse=is_exact,
                native=None,
            )
            got = OPS.ffn(x, OPS.ffn_weights(ffn))
            np.testing.assert_allclose(got[0], np.array(expected) * factor, atol=2e-6)


def test_clamped_swiglu() -> None:
    """Gate is cut above 7 only, up on both sides; NaN passes."""
    gate = np.array([2.0, 9.0, -9.0, np.nan, 1.0, 1.0, 1.0], np.float64)
    up = np.array([3.0, 1.0, 1.0, 1.0, 8.0, -8.0, np.nan], np.float64)
    got = activate(Activation(ActivationKind.CLAMPED_SWIGLU), gate, up)
    cut_gate, cut_up = np.array([2, 7, -9, np.nan, 1, 1, 1]), np.array([3, 1, 1, 1, 7, -7, np.nan])
    expected = (cut_up + 1) * cut_gate / (1 + np.exp(-1.702 * cut_gate))
    np.testing.assert_allclose(got, expected, rtol=1e-12)
    alone = activate(Activation(ActivationKind.CLAMPED_SWIGLU), None, gate)
    np.testing.assert_allclose(alone, cut_gate / (1 + np.exp(-1.702 * cut_gate)), rtol=1e-12)


@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("is_down_transposed", [True, False])
def test_exact_ffn_with_biases_equals_dense(is_gated: bool, is_down_transposed: bool) -> None:
    down_shape = (9, 4) if is_down_transposed else (4, 9)
    down = Linear(linear(*down_shape, 3).matrix, np.array([1, 2, 3, 4], np.float32))

    def block(is_exact: bool) -> ReferenceFFN:
        return FFN(
            gate=linear(9, 4, 1, has_bias=True) if is_gated else None,
            up=linear(9, 4, 2, has_bias=True),
            down=down,
            activation=Activation(ActivationKind.RELU),
            is_down_transposed=is_down_transposed,
            is_exact_sparse=is_exact,
            native=None,
        )

    exact, dense = block(True), block(False)
    np.testing.assert_allclose(OPS.ffn(X, exact), OPS.ffn(X, dense), rtol=1e-6)


def test_skipping_needs_a_sparse_activation() -> None:
    part = linear(4, 4, 0)
    ffn: ReferenceFFN = FFN(
        None, part, part, Activation(ActivationKind.SILU), True, True, native=None
    )
    with pytest.raises(UnsupportedError, match="silu has no neurons to skip"):
        OPS.ffn_weights(ffn)


def test_attention_by_hand() -> None:
    """Two query heads share one KV head; three positions, the window hides the first."""
    cache = OPS.new_kv_layers(1, 2, 2, 1, 2, KVType.F16)[0]
    keys = np.array([[1, 0], [0, 1], [1, 1]], np.float32)
    values = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    q = np.array([[1.0, 0.5, -1.0, 2.0]], np.float32)
    for position in range(3):
        batch = one_token_batch(position, [1, 0])
        k, v = keys[position : position + 1].copy(), values[position : position + 1].copy()
        OPS.rope_and_store(q.copy(), k, v, cache, batch, None)
    got = OPS.attention(q, cache, one_token_batch(2, [1, 0]), 0.5, 2)
    for head in range(2):
        scores = np.exp(keys[1:] @ q[0, 2 * head : 2 * head + 2] * 0.5)
        expected = scores / scores.sum() @ values[1:]
        np.testing.assert_allclose(got[0, 2 * head : 2 * head + 2], expected, rtol=1e-6)


def test_sinks_and_soft_caps_by_hand() -> None:
    """Two positions, two heads with a key of their own."""
    cache = OPS.new_kv_layers(1, 1, 2, 2, 1, KVType.F16)[0]
    for position, (key, value) in enumerate((([1.0, 2.0], [3.0, 5.0]), ([0.5, 4.0], [7.0, 11.0]))):
        k, v = np.array([key], np.float32), np.array([value], np.float32)
        batch = one_token_batch(position, [0])
        OPS.rope_and_store(np.ones((1, 2), np.float32), k, v, cache, batch, None)
    q, sinks = np.array([[2.0, -1.0]], np.float32), np.array([0.25, -3.0], np.float32)
    got = OPS.attention(q, cache, one_token_batch(1, [0]), 0.5, sinks=sinks, soft_cap=1.5)
    # 2 * (1, 0.5) / 2 and -(2, 4) / 2, capped.
    first, second = (1.5 * np.tanh(np.array(x) / 1.5) for x in ([1.0, 0.5], [-1.0, -2.0]))
    for head, (scores, values) in enumerate(((first, [3.0, 7.0]), (second, [5.0, 11.0]))):
        weights = np.exp(scores)
        expected = weights @ np.array(values) / (weights.sum() + np.exp(sinks[head]))
        np.testing.assert_allclose(got[0, head], expected, rtol=1e-6)


def test_head_norms_by_hand() -> None:
    """Heads are normalised before they turn by a quarter: (a, b) becomes (-b, a)."""
    cache = OPS.new_kv_layers(1, 1, 2, 1, 2, KVType.F16)[0]
    q, k = np.array([[3.0, 4.0, -1.0, 7.0]], np.float32), np.array([[6.0, 8.0]], np.float32)
    quarter = RopeTable(np.zeros((1, 1), np.float32), np.ones((1, 1), np.float32), True)
    norms = HeadNorms(np.array([2.0, 1.0], np.float32), np.array([1.0, 3.0], np.float32), 0.0)
    OPS.rope_and_store(q, k, k.copy(), cache, one_token_batch(0, [0]), quarter, norms)
    root = np.sqrt(0.5)
    np.testing.assert_allclose(q[0], [-0.8 / root, 1.2 / root, -1.4, -0.4], rtol=1e-6)
    np.testing.assert_allclose(k[0], [-2.4 / root, 0.6 / root], rtol=1e-6)
    np.testing.assert_array_equal(cache.keys[0, 0, 0], k[0].astype(np.float16))
    np.testing.assert_array_equal(cache.values[0, 0, 0], [6.0, 8.0])


def test_a_token_without_a_block_is_refused() -> None:
    cache = OPS.new_kv_layers(1, 2, 2, 1, 2, KVType.F16)[0]
    row = np.zeros((1, 2), np.float32)
    with pytest.raises(PowerInferError, match="no KV block"):
        OPS.rope_and_store(row, row, row, cache, one_token_batch(2, [1, -1]), None)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match="must be a matrix"):
        OPS.matrix(tensor(np.zeros(3, np.float32)), MatrixUse.DENSE)
    with pytest.raises(ShapeError, match="must be a vector"):
        OPS.vector(tensor(np.zeros((3, 1), np.float32)))
    with pytest.raises(ShapeError, match="does not fit"):
        OPS.linear(X, [linear(2, 5, 0)])
