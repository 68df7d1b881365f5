"""Mixtures of experts of the numpy reference, which checks every other backend."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from native_cases import numbers, vector_tensor
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.operands import (
    FFN,
    ActiveIds,
    Linear,
    MatrixUse,
    NeuronPredictor,
    Router,
    RouterRule,
    ScoreStage,
)
from powerinfer.ops.protocol import FFNCounters
from powerinfer.ops.reference.experts import ReferenceRouter
from powerinfer.ops.reference.ffn import ReferenceFFN, run_ffn
from powerinfer.ops.reference.matrix import ReferenceLinear
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.ops.reference.predictor import ReferencePredictor
from powerinfer.values import Activation, ActivationKind, FloatArray

EXPERTS, USED, NEURONS, HIDDEN = 5, 2, 6, 8
SILU, RELU = Activation(ActivationKind.SILU), Activation(ActivationKind.RELU)


def tensor(values: FloatArray) -> Tensor:
    data = np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8)
    return Tensor("t", values.shape, "f32", data, Path("made.gguf"))


def router(
    values: FloatArray,
    num_used: int = USED,
    rule: RouterRule = RouterRule.SOFTMAX,
    bias: FloatArray | None = None,
    *,
    is_normalized: bool = True,
) -> ReferenceRouter:
    ops = ReferenceOps()
    matrix = ops.matrix(tensor(values), MatrixUse.DENSE)
    return Router(Linear(matrix, bias), len(values), num_used, rule, is_normalized)


def linear(
    shape: tuple[int, int], seed: int, *, has_bias: bool, size: int | None = None
) -> ReferenceLinear:
    ops = ReferenceOps()
    matrix = ops.expert_matrix([tensor(numbers((EXPERTS, *shape), seed))], MatrixUse.NEURONS)
    if not has_bias:
        return Linear(matrix)
    bias = numbers((EXPERTS, size or shape[0]), seed + 1)
    return Linear(matrix, ops.expert_vector(tensor(bias)))


def block(
    activation: Activation = SILU,
    *,
    is_gated: bool = True,
    is_down_transposed: bool = True,
    is_exact_sparse: bool = False,
    has_bias: bool = False,
    num_used: int = USED,
    rule: RouterRule = RouterRule.SOFTMAX,
    is_normalized: bool = True,
) -> ReferenceFFN:
    rows = (NEURONS, HIDDEN)
    down = rows if is_down_transposed else (HIDDEN, NEURONS)
    bias = numbers((EXPERTS,), 70) if has_bias else None
    made: ReferenceFFN = FFN(
        gate=linear(rows, 10, has_bias=has_bias) if is_gated else None,
        up=linear(rows, 20, has_bias=has_bias),
        down=linear(down, 30, has_bias=has_bias, size=HIDDEN),
        activation=activation,
        is_down_transposed=is_down_transposed,
        is_exact_sparse=is_exact_sparse,
        router=router(
            numbers((EXPERTS, HIDDEN), 40), num_used, rule, bias, is_normalized=is_normalized
        ),
        native=None,
    )
    return ReferenceOps().ffn_weights(made)


def one_expert(ffn: ReferenceFFN, number: int) -> ReferenceFFN:
    """Cut out by hand."""

    def part(whole: ReferenceLinear) -> ReferenceLinear:
        values = np.split(whole.matrix.values, EXPERTS)[number]
        matrix = ReferenceOps().matrix(tensor(values), MatrixUse.NEURONS)
        if whole.bias is None:
            return Linear(matrix)
        return Linear(matrix, np.split(whole.bias, EXPERTS)[number])

    return replace(
        ffn,
        gate=None if ffn.gate is None else part(ffn.gate),
        up=part(ffn.up),
        down=part(ffn.down),
        router=None,
    )


def expected(x: FloatArray, ffn: ReferenceFFN, seen: FloatArray | None = None) -> FloatArray:
    """Token by token, expert by expert."""
    ids, weights = ReferenceOps().route(x if seen is None else seen, ffn)
    out = np.zeros((len(x), HIDDEN))
    for token in range(len(x)):
        for expert, weight in zip(ids[token], weights[token], strict=True):
            row = x[token : token + 1]
            y = run_ffn(row, one_expert(ffn, int(expert)), None, FFNCounters())
            out[token] += float(weight) * y[0].astype(np.float64)
    return out.astype(np.float32)


def test_of_equal_logits_the_lower_ids_are_chosen() -> None:
    values = np.zeros((EXPERTS, 2), np.float32)
    values[3] = values[4] = 1.0
    ffn = replace(block(), router=router(values, num_used=3))
    ids, weights = ReferenceOps().route(np.ones((1, 2), np.float32), ffn)
    assert ids.dtype == np.int32
    assert ids.tolist() == [[0, 3, 4]]
    np.testing.assert_allclose(weights[0], np.exp([-2.0, 0, 0]) / np.exp([-2.0, 0, 0]).sum())
    ids, _ = ReferenceOps().route(np.zeros((1, 2), np.float32), ffn)
    assert ids.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("rule", RouterRule)
def test_weights(rule: RouterRule, is_normalized: bool) -> None:
    values, bias = numbers((EXPERTS, HIDDEN), 1), numbers((EXPERTS,), 2)
    x = numbers((9, HIDDEN), 3)
    chooses = router(values, 3, rule, bias, is_normalized=is_normalized)
    ids, weights = ReferenceOps().route(x, replace(block(), router=chooses))
    for token in range(len(x)):
        logits = values.astype(np.float64) @ x[token] + bias
        largest = sorted(np.argsort(-logits)[:3])
        assert ids[token].tolist() == largest
        every = np.exp(logits) if rule is RouterRule.SOFTMAX else 1 / (1 + np.exp(-logits))
        if rule is RouterRule.SOFTMAX and not is_normalized:
            every /= every.sum()
        chosen = every[largest] / (every[largest].sum() if is_normalized else 1.0)
        np.testing.assert_allclose(weights[token], chosen, rtol=1e-5)


@pytest.mark.parametrize("rule", RouterRule)
def test_weights_are_scaled_last(rule: RouterRule) -> None:
    plain = router(numbers((EXPERTS, HIDDEN), 1), 3, rule)
    x = numbers((4, HIDDEN), 3)
    ids, weights = ReferenceOps().route(x, replace(block(), router=plain))
    scaled = replace(block(), router=replace(plain, scale=2.5))
    same_ids, times = ReferenceOps().route(x, scaled)
    np.testing.assert_array_equal(same_ids, ids)
    np.testing.assert_allclose(times, 2.5 * weights, rtol=1e-6)


def test_sums_of_sigmoids_have_a_floor() -> None:
    values = np.full((2, 1), -20.0, np.float32)
    ffn = replace(block(), router=router(values, 2, RouterRule.SIGMOID))
    _, weights = ReferenceOps().route(np.ones((1, 1), np.float32), ffn)
    np.testing.assert_allclose(weights, np.exp(-20.0) / 6.1e-5, rtol=1e-5)
    _, halves = ReferenceOps().route(np.zeros((1, 1), np.float32), ffn)
    np.testing.assert_allclose(halves, 0.5)


@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("rule", RouterRule)
def test_nan_in_a_logit_makes_the_token_nan_and_no_other(
    rule: RouterRule, is_normalized: bool
) -> None:
    ffn = block(rule=rule, is_normalized=is_normalized)
    assert ffn.router is not None
    damaged = ffn.router.linear.matrix.values.copy()
    damaged[0, 1] = np.nan
    ffn = replace(ffn, router=router(damaged, rule=rule, is_normalized=is_normalized))
    x = numbers((2, HIDDEN), 5)
    assert np.isnan(ReferenceOps().ffn(x, ffn)).all()
    ids, weights = ReferenceOps().route(x, ffn)
    assert 0 not in ids
    assert np.isnan(weights).all()
    x[0, 2] = np.nan
    healthy = block(rule=rule, is_normalized=is_normalized)
    got = ReferenceOps().ffn(x, healthy)
    assert np.isnan(got[0]).all()
    assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("num_used", [1, USED, EXPERTS])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_down_transposed", [False, True])
@pytest.mark.parametrize("activation", [SILU, RELU, Activation(ActivationKind.CLAMPED_SWIGLU)])
def test_a_mixture_is_the_weighted_sum_of_its_experts(
    activation: Activation, is_down_transposed: bool, has_bias: bool, num_used: int
) -> None:
    ffn = block(
        activation, is_down_transposed=is_down_transposed, has_bias=has_bias, num_used=num_used
    )
    x = numbers((7, HIDDEN), 6)
    np.testing.assert_allclose(ReferenceOps().ffn(x, ffn), expected(x, ffn), rtol=2e-5, atol=2e-6)
    if activation.is_sparse:
        exact = replace(ffn, is_exact_sparse=True)
        np.testing.assert_allclose(
            ReferenceOps().ffn(x, exact), ReferenceOps().ffn(x, ffn), rtol=1e-6, atol=1e-6
        )


def test_an_ungated_mixture() -> None:
    ffn = block(Activation(ActivationKind.RELU2), is_gated=False, rule=RouterRule.SIGMOID)
    x = numbers((3, HIDDEN), 6)
    np.testing.assert_allclose(ReferenceOps().ffn(x, ffn), expected(x, ffn), rtol=2e-5, atol=2e-6)


def test_the_router_may_see_something_else() -> None:
    ffn, x, seen = block(), numbers((7, HIDDEN), 6), numbers((7, HIDDEN), 7)
    got = ReferenceOps().ffn(x, ffn, router_input=seen)
    np.testing.assert_allclose(got, expected(x, ffn, seen), rtol=2e-5, atol=2e-6)
    assert not np.allclose(got, ReferenceOps().ffn(x, ffn))
    later = ReferenceOps().start_ffn(x, ffn, router_input=seen)
    np.testing.assert_array_equal(later(), got)


def test_listed_neurons_of_other_experts_do_not_count() -> None:
    ffn, x = block(RELU, is_exact_sparse=True), numbers((4, HIDDEN), 6)
    mask = np.ones((4, EXPERTS * NEURONS), bool)
    got = ReferenceOps().ffn_active(x, ffn, ActiveIds.of_mask(mask))
    np.testing.assert_array_equal(got, ReferenceOps().ffn(x, ffn))
    seen = numbers((4, HIDDEN), 7)
    other = ReferenceOps().ffn_active(x, ffn, ActiveIds.of_mask(mask), router_input=seen)
    np.testing.assert_array_equal(other, ReferenceOps().ffn(x, ffn, router_input=seen))
    mask[:, ::2] = False
    some = ReferenceOps().ffn_active(x, ffn, ActiveIds.of_mask(mask))
    assert not np.allclose(some, got)


def predictor(num_experts: int) -> ReferencePredictor:
    ops, rank = ReferenceOps(), 3
    rows = EXPERTS * NEURONS
    fc1 = ops.matrix(tensor(numbers((num_experts * rank, HIDDEN), 50)), MatrixUse.DENSE)
    fc2 = ops.matrix(tensor(numbers((rows, rank), 51)), MatrixUse.DENSE)
    stage = ScoreStage(fc2, numbers((rows,), 52), 0.1)
    made = NeuronPredictor(fc1, None, (stage,), num_experts=num_experts, native=None)
    return ops.neuron_predictor(made)


@pytest.mark.parametrize("num_experts", [1, EXPERTS])
def test_a_predictor_decides_within_the_chosen_experts(num_experts: int) -> None:
    ops, x = ReferenceOps(), numbers((6, HIDDEN), 6)
    ffn = block(RELU, is_exact_sparse=True)
    decides = predictor(num_experts)
    active = ops.predict(x, decides)
    got = ops.ffn(x, replace(ffn, predictor=decides))
    np.testing.assert_array_equal(got, ReferenceOps().ffn_active(x, ffn, active))
    # Every expert's neurons see its own hidden layer.
    assert decides.fc1 is not None
    fc1, stage = decides.fc1.values, decides.stages[0]
    assert stage.bias is not None
    hidden = np.maximum(x.astype(np.float64) @ fc1.T.astype(np.float64), 0.0)
    mask = active.mask(EXPERTS * NEURONS)
    for neuron in range(EXPERTS * NEURONS):
        own = neuron // NEURONS if num_experts > 1 else 0
        scores = hidden[:, 3 * own : 3 * own + 3] @ stage.matrix.values[neuron]
        passes = scores + stage.bias[neuron] >= 0.1
        np.testing.assert_array_equal(mask[:, neuron], passes)


def test_counters_count_chosen_experts() -> None:
    ops, x = ReferenceOps(), numbers((1, HIDDEN), 6)
    ops.ffn(x, block())
    row, rows = 4 * HIDDEN, USED * NEURONS
    assert ops.counters == FFNCounters(
        active=rows,
        predicted=rows,
        total=EXPERTS * NEURONS,
        bytes_read=3 * rows * row + EXPERTS * row,
    )
    ops = ReferenceOps()
    ffn = replace(block(RELU, is_exact_sparse=True), predictor=predictor(EXPERTS))
    ops.ffn(x, ffn)
    # Of fc1 and fc2 only the rows of the chosen experts.
    assert ops.counters.predictor_bytes == USED * 3 * row + rows * 3 * 4
    assert ops.counters.total == EXPERTS * NEURONS
    assert 0 < ops.counters.active <= ops.counters.predicted < rows


def test_a_matrix_of_all_experts_is_one_tensor_or_one_of_each() -> None:
    ops, values = ReferenceOps(), numbers((EXPERTS, NEURONS, HIDDEN), 8)
    merged = ops.expert_matrix([tensor(values)], MatrixUse.NEURONS)
    apart = ops.expert_matrix([tensor(each) for each in values], MatrixUse.NEURONS)
    assert merged.values.shape == (EXPERTS * NEURONS, HIDDEN)
    np.testing.assert_array_equal(merged.values, apart.values)
    assert merged.num_bytes == apart.num_bytes == values.nbytes
    with pytest.raises(ShapeError, match="must be a matrix of one expert"):
        ops.expert_matrix([vector_tensor(numbers((4,), 1))], MatrixUse.NEURONS)
    with pytest.raises(ShapeError, match="must be alike"):
        ops.expert_matrix([tensor(values[0]), tensor(values[1][:3])], MatrixUse.NEURONS)
    with pytest.raises(ShapeError, match="a vector per expert"):
        ops.expert_vector(vector_tensor(numbers((4,), 1)))


def test_routers_that_do_not_fit_are_refused() -> None:
    ops, ffn = ReferenceOps(), block()
    for bad, message in (
        (router(numbers((4, HIDDEN), 1)), "does not divide into 4 experts"),
        (replace(router(numbers((4, HIDDEN), 1)), num_experts=EXPERTS), "router of 4 rows"),
        (router(numbers((EXPERTS, HIDDEN), 1), num_used=6), "cannot choose 6 of 5"),
    ):
        with pytest.raises(ShapeError, match=message):
            ops.ffn_weights(replace(ffn, router=bad))
    with pytest.raises(UnsupportedError, match="without a router"):
        ops.route(numbers((1, HIDDEN), 1), replace(ffn, router=None))
