"""Mixtures of experts on every kernel table: results, the rule of bits, counts, errors."""

from dataclasses import replace

import numpy as np
import pytest

from expert_cases import EXPERTS, ExpertCase, make_experts
from native_cases import (
    FORMATS,
    HostOps,
    both,
    given_rows,
    make_linear,
    numbers,
    reference,
    rounds_to_bf16,
    same_bits,
    use_kernels,
)
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.ops.cpu.handles import NativeMatrix, NativePredictor, NativeVector
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.operands import ActiveIds, NeuronPredictor, RouterRule, ScoreStage
from powerinfer.values import Activation, ActivationKind, BoolArray, FloatArray, IntArray
from tolerances import assert_close

RELU = Activation(ActivationKind.RELU)
RELU2 = Activation(ActivationKind.RELU2)
DRELU = Activation(ActivationKind.DRELU)
HIDDEN, SIZE = ExpertCase().sizes
ACTIVATIONS = [
    Activation(kind, 0.3 if kind is ActivationKind.FATRELU else 0.0) for kind in ActivationKind
]
kinds = pytest.mark.parametrize("is_prompt", [False, True], ids=["decode", "prompt"])


def marks(num_tokens: int, is_prompt: bool) -> BoolArray | None:
    return given_rows(num_tokens) if is_prompt else None


def tolerance(kernels: str, format_name: str, *, is_prompt: bool) -> str:
    if format_name in ("f32", "f16", "bf16"):
        is_rounded = is_prompt and rounds_to_bf16(kernels, format_name)
        return "one operation, bf16" if is_rounded else "one operation, float"
    return "one operation, quantized experts"


def check(kernels: str, case: ExpertCase, num_tokens: int, *, is_prompt: bool) -> None:
    """Tokens that choose the same experts on both have the same result."""
    ops, oracle = use_kernels(kernels), reference()
    ffn, expected = make_experts(ops, case), make_experts(oracle, case)
    x = numbers((num_tokens, HIDDEN), 8)
    ids, weights = ops.route(x, ffn, marks(num_tokens, is_prompt))
    right_ids, right_weights = oracle.route(x, expected)
    agree = (ids == right_ids).all(axis=1)
    assert agree.mean() > 0.9
    np.testing.assert_allclose(weights[agree], right_weights[agree], rtol=2e-2, atol=1e-4)
    got = ops.ffn(x, ffn, None, marks(num_tokens, is_prompt))
    name = tolerance(kernels, case.format_name, is_prompt=is_prompt)
    assert_close(got[agree], oracle.ffn(x, expected)[agree], name)


@kinds
@pytest.mark.parametrize("num_tokens", [1, 7, 20])
@pytest.mark.parametrize("format_name", FORMATS)
def test_every_format(kernels: str, format_name: str, num_tokens: int, is_prompt: bool) -> None:
    case = ExpertCase(format_name=format_name, is_down_transposed=num_tokens != 7)
    if num_tokens != 20:
        case = replace(case, activation=RELU, is_exact_sparse=True)
    check(kernels, case, num_tokens, is_prompt=is_prompt)


@kinds
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "ungated"])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_every_activation(
    kernels: str, activation: Activation, is_gated: bool, is_prompt: bool
) -> None:
    case = ExpertCase(activation, is_gated=is_gated, is_exact_sparse=activation.is_sparse)
    check(kernels, case, 5, is_prompt=is_prompt)
    biased = replace(case, has_bias=True, is_down_transposed=False)
    check(kernels, biased, 5, is_prompt=is_prompt)


@kinds
@pytest.mark.parametrize("is_normalized", [True, False])
@pytest.mark.parametrize("rule", RouterRule)
@pytest.mark.parametrize("num_used", [1, 3, EXPERTS])
def test_every_router(
    kernels: str, num_used: int, rule: RouterRule, is_normalized: bool, is_prompt: bool
) -> None:
    case = ExpertCase(num_used=num_used, rule=rule, is_normalized=is_normalized, has_bias=True)
    case = replace(case, scale=2.5 if num_used == 3 else 1.0)
    check(kernels, case, 9, is_prompt=is_prompt)


@kinds
def test_600_tokens(kernels: str, is_prompt: bool) -> None:
    check(kernels, ExpertCase(RELU, is_exact_sparse=True), 600, is_prompt=is_prompt)


def test_equal_logits_choose_the_lower_ids(kernels: str) -> None:
    ops = use_kernels(kernels)
    ffn = make_experts(ops, ExpertCase(num_used=3))
    ids, weights = ops.route(np.zeros((2, HIDDEN), np.float32), ffn)
    assert ids.tolist() == [[0, 1, 2]] * 2
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


@kinds
def test_a_bias_chooses_experts_but_does_not_weigh_them(kernels: str, is_prompt: bool) -> None:
    case = ExpertCase(num_used=3, rule=RouterRule.SIGMOID, is_normalized=False)
    x = numbers((9, HIDDEN), 7)

    def routed(ops: HostOps, bias: FloatArray) -> tuple[IntArray, FloatArray]:
        ffn = make_experts(ops, case)
        assert ffn.router is not None
        router = replace(ffn.router, selection_bias=ops.constant(bias))
        return ops.route(x, ops.ffn_weights(replace(ffn, router=router)), marks(9, is_prompt))

    bias = numbers((EXPERTS,), 42)
    native, oracle = both(kernels)
    ids, weights = routed(native, bias)
    expected_ids, expected_weights = routed(oracle, bias)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(weights, expected_weights, atol=1e-2)
    # A bias beyond all sigmoids names the experts alone.
    far = np.zeros(EXPERTS, np.float32)
    far[-3:] = 2.0
    ids, weights = routed(native, far)
    assert ids.tolist() == [list(range(EXPERTS - 3, EXPERTS))] * 9
    assert (weights <= 1.0).all()


@kinds
def test_nan_reaches_its_own_token_only(kernels: str, is_prompt: bool) -> None:
    ops, x = use_kernels(kernels), numbers((3, HIDDEN), 5)
    x[1, 7] = np.nan
    for case in (ExpertCase(), ExpertCase(RELU, is_exact_sparse=True, rule=RouterRule.SIGMOID)):
        got = ops.ffn(x, make_experts(ops, case), None, marks(3, is_prompt))
        assert np.isnan(got[1]).all()
        assert np.isfinite(got[[0, 2]]).all()


@kinds
@pytest.mark.parametrize("format_name", ["f32", "q4_0", "q8_0", "q4_k"])
@pytest.mark.parametrize("is_exact", [False, True], ids=["dense", "exact"])
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "ungated"])
def test_a_row_depends_on_nothing_else(
    kernels: str, format_name: str, is_gated: bool, is_exact: bool, is_prompt: bool
) -> None:
    activation = RELU if is_gated else RELU2
    case = ExpertCase(
        activation, format_name, is_gated=is_gated, is_exact_sparse=is_exact, num_used=3
    )
    x = numbers((37, HIDDEN), 5)
    results = []
    for threads, cuts in ((1, [37]), (3, [1, 20, 37]), (2, list(range(1, 38)))):
        ops = NativeOps(threads, kernels)
        ffn = make_experts(ops, replace(case, is_single=threads == 2))
        parts = np.split(x, cuts[:-1])
        results.append(
            np.concatenate(
                [ops.ffn(part, ffn, None, marks(len(part), is_prompt)) for part in parts]
            )
        )
    assert same_bits(results[0], results[1])
    assert same_bits(results[0], results[2])


def test_rows_of_both_kinds_in_one_call(kernels: str) -> None:
    ops, x = use_kernels(kernels), numbers((9, HIDDEN), 5)
    ffn = make_experts(ops, ExpertCase(RELU, "q8_0", is_exact_sparse=True))
    mixed = np.arange(9) % 3 == 0
    got = ops.ffn(x, ffn, None, mixed)
    prompt, decode = ops.ffn(x, ffn, None, given_rows(9)), ops.ffn(x, ffn)
    assert same_bits(got, np.where(mixed[:, None], prompt, decode))


@kinds
def test_the_router_may_see_something_else(kernels: str, is_prompt: bool) -> None:
    ops, oracle, case = use_kernels(kernels), reference(), ExpertCase(RELU, is_exact_sparse=True)
    ffn, expected = make_experts(ops, case), make_experts(oracle, case)
    x, seen = numbers((6, HIDDEN), 5), numbers((6, HIDDEN), 6)
    got = ops.ffn(x, ffn, None, marks(6, is_prompt), seen)
    assert_close(got, oracle.ffn(x, expected, router_input=seen), "one operation, float")
    assert same_bits(ops.start_ffn(x, ffn, None, marks(6, is_prompt), seen)(), got)


@kinds
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "ungated"])
@pytest.mark.parametrize("format_name", ["f32", "q4_0"])
def test_experts_may_be_narrower_than_the_input_of_their_router(
    kernels: str, format_name: str, is_gated: bool, is_prompt: bool
) -> None:
    ops, oracle = use_kernels(kernels), reference()
    case = ExpertCase(
        RELU2,
        format_name,
        rule=RouterRule.SIGMOID,
        scale=2.5,
        router_size=3 * HIDDEN,
        is_gated=is_gated,
        is_exact_sparse=True,
    )
    ffn, expected = make_experts(ops, case), make_experts(oracle, case)
    x, seen = numbers((6, HIDDEN), 5), numbers((6, 3 * HIDDEN), 6)
    rows = marks(6, is_prompt)
    right = oracle.ffn(x, expected, router_input=seen)
    name = tolerance(kernels, format_name, is_prompt=is_prompt)
    got = ops.ffn(x, ffn, None, rows, seen)
    assert_close(got, right, name)
    everything = ActiveIds.of_mask(np.ones((6, EXPERTS * SIZE), bool))
    assert_close(ops.ffn_active(x, ffn, everything, rows, seen), right, name)
    if is_prompt:
        output, bits = ops.ffn_firing(x, ffn, rows, seen)
        assert same_bits(output, got)
        assert 0 < np.unpackbits(bits).sum() < 6 * case.num_used * SIZE
    for wrong in (None, x):
        with pytest.raises(ShapeError, match="router"):
            ops.ffn(x, ffn, None, rows, wrong)


def native_predictor(ops: NativeOps, num_experts: int) -> NativePredictor:
    rank = 32
    first = make_linear(ops, "f32", (num_experts * rank, HIDDEN), 50).matrix
    second = make_linear(ops, "f32", (EXPERTS * SIZE, rank), 51).matrix
    stage: ScoreStage[NativeMatrix, NativeVector] = ScoreStage(second, None, 0.5)
    return ops.neuron_predictor(
        NeuronPredictor(first, None, (stage,), num_experts=num_experts, native=None)
    )


@kinds
@pytest.mark.parametrize("num_experts", [1, EXPERTS], ids=["shared", "own"])
@pytest.mark.parametrize("activation", [RELU, DRELU, RELU2], ids=str)
def test_predicted_and_listed_neurons(
    kernels: str, activation: Activation, num_experts: int, is_prompt: bool
) -> None:
    ops, oracle = use_kernels(kernels), reference()
    is_gated = activation is not RELU2
    case = ExpertCase(activation, is_exact_sparse=True, is_gated=is_gated)
    ffn, expected = make_experts(ops, case), make_experts(oracle, case)
    predictor, x = native_predictor(ops, num_experts), numbers((5, HIDDEN), 5)
    active = ops.predict(x, predictor, marks(5, is_prompt))
    got = ops.ffn(x, replace(ffn, predictor=predictor), None, marks(5, is_prompt))
    assert_close(got, oracle.ffn_active(x, expected, active), "one operation, float")
    listed = ops.ffn_active(x, ffn, active, marks(5, is_prompt))
    assert_close(listed, got, "one operation, float")
    seen = numbers((5, HIDDEN), 6)
    routed = ops.ffn_active(x, ffn, active, marks(5, is_prompt), seen)
    right = oracle.ffn_active(x, expected, active, router_input=seen)
    assert_close(routed, right, "one operation, float")


@pytest.mark.parametrize("is_down_transposed", [True, False], ids=["transposed", "plain"])
@pytest.mark.parametrize("is_exact", [True, False], ids=["exact", "dense"])
@pytest.mark.parametrize("is_gated", [True, False], ids=["gated", "ungated"])
def test_counters_are_those_of_the_reference(
    kernels: str, is_gated: bool, is_exact: bool, is_down_transposed: bool
) -> None:
    ops, oracle = use_kernels(kernels), reference()
    case = ExpertCase(is_down_transposed=is_down_transposed, is_gated=is_gated)
    if is_exact:
        case = replace(case, activation=RELU, is_exact_sparse=True)
    x = numbers((4, HIDDEN), 5)
    ops.ffn(x, make_experts(ops, case))
    oracle.ffn(x, make_experts(oracle, case))
    assert replace(ops.counters, down_bytes=0) == replace(oracle.counters, down_bytes=0)


def test_errors(kernels: str) -> None:
    ops = use_kernels(kernels)
    ffn = make_experts(ops, ExpertCase())
    assert ffn.router is not None
    with pytest.raises(UnsupportedError, match="without a router"):
        ops.route(numbers((1, HIDDEN), 1), replace(ffn, router=None))
    with pytest.raises(ShapeError):
        ops.ffn_weights(replace(ffn, router=replace(ffn.router, num_used=EXPERTS + 1)))
    with pytest.raises(ShapeError):
        ops.ffn(numbers((1, HIDDEN), 1), ffn, router_input=numbers((2, HIDDEN), 1))


def outputs(ops: NativeOps, case: ExpertCase) -> FloatArray:
    return ops.ffn(numbers((8, HIDDEN), 5), make_experts(ops, case))


@pytest.mark.parametrize("format_name", ["f32", "q4_0", "q6_k"])
def test_layouts_and_places_of_weights_do_not_change_a_bit(kernels: str, format_name: str) -> None:
    case = ExpertCase(format_name=format_name)
    first = outputs(NativeOps(2, kernels), case)
    assert same_bits(outputs(NativeOps(2, kernels), replace(case, is_single=True)), first)
    assert same_bits(outputs(NativeOps(2, kernels, in_place=False), case), first)
