"""Neuron predictors and feed-forward blocks over chosen neurons, against the numpy reference."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_cases import (
    THREADS,
    both,
    make_ffn,
    make_linear,
    numbers,
    same_bits,
    tensor,
    use_kernels,
    vector_tensor,
)
from powerinfer.errors import ShapeError
from powerinfer.ops.cpu.handles import NativeFFN, NativeMatrix, NativeVector
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import (
    ActiveIds,
    FFNCounters,
    Linear,
    MatrixT,
    MatrixUse,
    NeuronPredictor,
    ScoreStage,
    VectorT,
    WeightLoader,
)
from powerinfer.values import Activation, ActivationKind, FloatArray
from tolerances import assert_close

HIDDEN, NEURONS, RANK = 256, 700, 64
SIZES = (HIDDEN, NEURONS)
KINDS = [ActivationKind.RELU, ActivationKind.DRELU, ActivationKind.SILU]
COPIES = ("f16", "q8_0", "q4_0", "lowbit2", "lowbit3", "sign")

Mask = npt.NDArray[np.bool_]


def make_predictor(
    ops: WeightLoader[MatrixT, VectorT],
    thresholds: tuple[float, ...],
    *,
    has_fc1: bool = False,
    has_center: bool = False,
    copies: tuple[str | None, ...] = (None, None),
) -> NeuronPredictor[MatrixT, VectorT]:
    """The same predictor for every backend: one stage per threshold, the first with a bias."""
    fc1 = ops.matrix(tensor("f16", (RANK, HIDDEN), 40), MatrixUse.DENSE) if has_fc1 else None
    center = ops.constant(numbers((HIDDEN,), 41)) if has_center else None
    columns = RANK if has_fc1 else HIDDEN
    stages = []
    for i, threshold in enumerate(thresholds):
        matrix = ops.matrix(tensor("f32", (NEURONS, columns), 50 + i), MatrixUse.NEURONS)
        copy = copies[i]
        if copy is not None:
            matrix = ops.recode(matrix, copy)
        bias = ops.constant(numbers((NEURONS,), 60)) if i == 0 else None
        stages.append(ScoreStage(matrix, bias, threshold))
    return ops.neuron_predictor(NeuronPredictor(fc1, center, tuple(stages), native=None))


def random_lists(num_tokens: int, seed: int) -> ActiveIds:
    """Lists of every density, none and all of the neurons among them."""
    random = np.random.default_rng(seed)
    densities = random.choice([0.0, 0.02, 0.3, 1.0], num_tokens)
    return ActiveIds.of_mask(random.random((num_tokens, NEURONS)) < densities[:, None])


def all_ids(num_tokens: int) -> ActiveIds:
    return ActiveIds.of_mask(np.ones((num_tokens, NEURONS), bool))


def mask_of(active: ActiveIds) -> Mask:
    mask = np.zeros((len(active.offsets) - 1, NEURONS), bool)
    for token, row in enumerate(mask):
        row[active.of(token)] = True
    return mask


def differing(a: ActiveIds, b: ActiveIds) -> int:
    return int((mask_of(a) != mask_of(b)).sum())


def tokens_of(active: ActiveIds, token: int) -> ActiveIds:
    ids = active.of(token)
    return ActiveIds(np.array([0, len(ids)], np.int64), np.ascontiguousarray(ids))


@pytest.mark.parametrize("has_fc1", [False, True])
@pytest.mark.parametrize("has_center", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 5, 70])
def test_predicts_what_the_reference_predicts(
    kernels: str, has_fc1: bool, has_center: bool, num_tokens: int
) -> None:
    x = numbers((num_tokens, HIDDEN), 1)
    found = [
        ops.predict(x, make_predictor(ops, (3.0, 2.0), has_fc1=has_fc1, has_center=has_center))
        for ops in both(kernels)
    ]
    assert found[0].offsets.dtype == np.int64 and found[0].ids.dtype == np.int32
    assert 0 < len(found[1].ids) < num_tokens * NEURONS / 2
    # A score within rounding of the threshold may fall on either side.
    assert differing(*found) <= 1 + num_tokens * NEURONS // 10_000


@pytest.mark.parametrize("copy", COPIES)
def test_copies_predict_what_the_reference_predicts(kernels: str, copy: str) -> None:
    x = numbers((6, HIDDEN), 1)
    found = [
        ops.predict(x, make_predictor(ops, (6.0, 0.0), copies=(copy, "q8_0")))
        for ops in both(kernels)
    ]
    # int8 activations move a score by a percent of its spread.
    assert len(found[1].ids) > 0
    assert differing(*found) <= 0.01 * 6 * NEURONS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("is_down_transposed", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 3, 40])
def test_listed_neurons_agree_with_the_reference(
    kernels: str,
    kind: ActivationKind,
    is_gated: bool,
    is_down_transposed: bool,
    num_tokens: int,
) -> None:
    x = numbers((num_tokens, HIDDEN), 1)
    active = random_lists(num_tokens, 3)
    native, oracle = both(kernels)
    results = [
        ops.ffn_active(
            x,
            make_ffn(
                ops,
                Activation(kind),
                SIZES,
                is_gated=is_gated,
                is_down_transposed=is_down_transposed,
                has_bias=True,
            ),
            active,
        )
        for ops in (native, oracle)
    ]
    assert_close(results[0], results[1], "one operation, float")
    assert native.counters.predicted == len(active.ids)
    assert native.counters.active == oracle.counters.active


@pytest.mark.parametrize("is_down_transposed", [True, False])
def test_predicted_block_is_the_block_over_predicted_neurons(
    kernels: str, is_down_transposed: bool
) -> None:
    """The predictor reads another input than the block, and both count what they read."""
    x, predictor_input = numbers((5, HIDDEN), 1), numbers((5, HIDDEN), 2)
    native, oracle = both(kernels)
    results, found = [], []
    for ops in (native, oracle):
        ffn = make_ffn(
            ops, Activation(ActivationKind.RELU), SIZES, is_down_transposed=is_down_transposed
        )
        predictor = make_predictor(ops, (3.0, 2.0), has_fc1=True)
        found.append(ops.predict(predictor_input, predictor))
        results.append(ops.ffn(x, replace(ffn, predictor=predictor), predictor_input))
    other = use_kernels(kernels)
    listed_ffn = make_ffn(
        other, Activation(ActivationKind.RELU), SIZES, is_down_transposed=is_down_transposed
    )
    assert same_bits(results[0], other.ffn_active(x, listed_ffn, found[0]))
    if differing(*found) == 0:  # else a score is within rounding of the threshold
        assert_close(results[0], results[1], "one operation, float")
        assert _rows_of_a_batch(native.counters) == _rows_of_a_batch(oracle.counters)
    assert native.counters.predictor_s > 0


def _rows_of_a_batch(counters: FFNCounters) -> tuple[int, ...]:
    return (
        counters.active,
        counters.predicted,
        counters.total,
        counters.bytes_read,
        counters.predictor_bytes,
        counters.down_bytes,
    )


def test_input_of_the_predictor_defaults_to_that_of_the_block() -> None:
    ops = use_kernels("portable")
    predictor = make_predictor(ops, (3.0,))
    ffn = replace(make_ffn(ops, Activation(ActivationKind.RELU), SIZES), predictor=predictor)
    x = numbers((2, HIDDEN), 1)
    assert same_bits(ops.ffn(x, ffn), ops.ffn(x, ffn, x))


@given(seed=st.integers(0, 2**32 - 1), num_tokens=st.integers(1, 20), kind=st.sampled_from(KINDS))
def test_all_neurons_equal_the_dense_block(
    seed: int, num_tokens: int, kind: ActivationKind
) -> None:
    ops = use_kernels("portable")
    ffn = make_ffn(ops, Activation(kind), SIZES, format_name="f16")
    x = numbers((num_tokens, HIDDEN), seed)
    assert_close(ops.ffn_active(x, ffn, all_ids(num_tokens)), ops.ffn(x, ffn), "exact sparse")


@given(
    seed=st.integers(0, 2**32 - 1),
    kind=st.sampled_from(KINDS),
    is_down_transposed=st.booleans(),
)
def test_skipping_a_neuron_equals_zeroing_it(
    seed: int, kind: ActivationKind, is_down_transposed: bool
) -> None:
    ops = use_kernels("portable")
    ffn = make_ffn(ops, Activation(kind), SIZES, is_down_transposed=is_down_transposed)
    active = random_lists(1, seed)
    zeroed = _without(ops, ffn, mask_of(active)[0], is_down_transposed)
    x = numbers((1, HIDDEN), seed)
    expected = ops.ffn(x, zeroed)
    got = ops.ffn_active(x, ffn, active)
    if len(active.ids) == 0:
        assert not got.any()
    else:
        assert_close(got, expected, "exact sparse")


def _without(ops: NativeOps, ffn: NativeFFN, keeps: Mask, is_down_transposed: bool) -> NativeFFN:
    """The block with the down weights of all other neurons zero."""
    shape = (NEURONS, HIDDEN) if is_down_transposed else (HIDDEN, NEURONS)
    down = numbers(shape, 30)  # what make_ffn takes
    if is_down_transposed:
        down[~keeps] = 0
    else:
        down[:, ~keeps] = 0
    weights = replace(tensor("f32", shape, 30), data=down.reshape(-1).view(np.uint8))
    return ops.ffn_weights(replace(ffn, down=Linear(ops.matrix(weights, MatrixUse.DENSE))))


Run = Callable[[NativeOps, FloatArray, ActiveIds], FloatArray]


def _listed(ops: NativeOps, x: FloatArray, active: ActiveIds) -> FloatArray:
    return ops.ffn_active(x, _relu(ops), active)


def _exact(ops: NativeOps, x: FloatArray, _: ActiveIds) -> FloatArray:
    return ops.ffn(x, _relu(ops, is_exact_sparse=True))


def _predicted(ops: NativeOps, x: FloatArray, _: ActiveIds) -> FloatArray:
    predictor = make_predictor(ops, (6.0, 0.0), has_center=True, copies=("lowbit2", "q4_0"))
    return ops.ffn(x, replace(_relu(ops), predictor=predictor))


def _relu(ops: NativeOps, *, is_exact_sparse: bool = False) -> NativeFFN:
    activation = Activation(ActivationKind.RELU)
    return make_ffn(ops, activation, SIZES, format_name="q8_0", is_exact_sparse=is_exact_sparse)


@pytest.mark.parametrize("run", [_listed, _exact, _predicted])
def test_a_batch_has_the_bits_of_single_tokens(kernels: str, run: Run) -> None:
    x, active = numbers((16, HIDDEN), 1), random_lists(16, 2)
    batch = run(use_kernels(kernels, 3), x, active)
    ops = use_kernels(kernels)
    for token in range(16):
        alone = run(ops, x[token : token + 1], tokens_of(active, token))
        assert same_bits(batch[token : token + 1], alone)


@pytest.mark.parametrize("run", [_listed, _exact, _predicted])
@pytest.mark.parametrize("num_tokens", [1, 6])
def test_threads_do_not_change_bits(kernels: str, run: Run, num_tokens: int) -> None:
    x, active = numbers((num_tokens, HIDDEN), 1), random_lists(num_tokens, 2)
    results = [run(use_kernels(kernels, threads), x, active) for threads in THREADS]
    assert all(same_bits(result, results[0]) for result in results)


def test_nan_and_the_lowest_threshold_let_everything_pass(kernels: str) -> None:
    ops = use_kernels(kernels)
    x = numbers((2, HIDDEN), 1)
    lowest = (-np.inf, -np.inf)
    for copies in ((None, None), ("lowbit2", "sign")):
        everything = ops.predict(x, make_predictor(ops, lowest, copies=copies))
        assert everything.offsets.tolist() == [0, NEURONS, 2 * NEURONS]
        bad = x.copy()
        bad[1, 3] = np.nan
        found = ops.predict(bad, make_predictor(ops, (np.inf, np.inf), copies=copies))
        assert found.offsets.tolist() == [0, 0, NEURONS]


def test_nan_reaches_the_output_through_a_predictor(kernels: str) -> None:
    ops = use_kernels(kernels)
    ffn = replace(_relu(ops), predictor=make_predictor(ops, (3.0, 3.0)))
    x = numbers((2, HIDDEN), 1)
    x[1, 3] = np.nan
    out = ops.ffn(x, ffn)
    assert np.isfinite(out[0]).all() and not np.isfinite(out[1]).any()


@pytest.mark.parametrize(
    "ids",
    [[5, 5], [6, 5], [-1], [NEURONS], [0, 2**31 - 1]],
    ids=["twice", "falling", "negative", "too large", "largest"],
)
def test_refuses_lists_that_do_not_ascend(ids: list[int]) -> None:
    ops = use_kernels("portable")
    offsets = np.array([0, 1, 1 + len(ids)], np.int64)
    active = ActiveIds(offsets, np.array([3, *ids], np.int32))
    with pytest.raises(IndexError, match=r"token 1 must (increase|ascend)"):
        ops.ffn_active(numbers((2, HIDDEN), 0), _relu(ops), active)


@pytest.mark.parametrize("offsets", [[0, 2, 1], [1, 1, 2], [0, 1, 3], [0, 1, 1], [0, -1, 2]])
def test_refuses_offsets_that_leave_the_ids(offsets: list[int]) -> None:
    ops = use_kernels("portable")
    active = ActiveIds(np.array(offsets, np.int64), np.array([3, 4], np.int32))
    with pytest.raises(IndexError, match=r"token \d do not lie|begin with 0"):
        ops.ffn_active(numbers((2, HIDDEN), 0), _relu(ops), active)


def test_refuses_lists_of_another_number_of_tokens() -> None:
    ops = use_kernels("portable")
    with pytest.raises(ShapeError, match="offsets has 2 entries, must have 3"):
        ops.ffn_active(numbers((2, HIDDEN), 0), _relu(ops), all_ids(1))


def test_refuses_predictors_that_do_not_fit() -> None:
    ops = use_kernels("portable")

    def stage(
        rows: int, columns: int, bias: int | None = None
    ) -> ScoreStage[NativeMatrix, NativeVector]:
        matrix = make_linear(ops, "f32", (rows, columns), 1).matrix
        return ScoreStage(matrix, None if bias is None else _vector(ops, bias), 0.0)

    def build(
        *stages: ScoreStage[NativeMatrix, NativeVector],
        fc1: tuple[int, int] | None = None,
        center: int = 0,
    ) -> None:
        matrix = None if fc1 is None else make_linear(ops, "f32", fc1, 1).matrix
        vector = _vector(ops, center) if center else None
        ops.neuron_predictor(NeuronPredictor(matrix, vector, stages, native=None))

    with pytest.raises(ShapeError, match="score stage 2 has 6 rows, must have one per neuron"):
        build(stage(7, 8), stage(6, 8))
    with pytest.raises(ShapeError, match="bias of score stage 1 has 6 entries, must have 7"):
        build(stage(7, 8, bias=6))
    with pytest.raises(ShapeError, match="score stage 1 has 8 columns, must have 9"):
        build(stage(7, 8), fc1=(9, 8))
    with pytest.raises(ShapeError, match="score stage 1 has 8 columns, must have 9"):
        build(stage(7, 8), center=9)
    with pytest.raises(ValueError, match="1 to 6 score stages, got 0"):
        build()


def test_refuses_predictors_of_another_block() -> None:
    ops = use_kernels("portable")
    ffn = make_ffn(ops, Activation(ActivationKind.RELU), (HIDDEN, NEURONS - 1))
    predictor = make_predictor(ops, (0.0,))
    x = numbers((1, HIDDEN), 0)
    with pytest.raises(ShapeError, match=r"predictor scores 700 neurons, the .* has 699"):
        ops.ffn(x, replace(ffn, predictor=predictor))
    with pytest.raises(ShapeError, match="score stage 1 has 256 columns, must have 257"):
        ops.predict(numbers((1, HIDDEN + 1), 0), predictor)
    with pytest.raises(ShapeError, match="predictor_input is"):
        ops.ffn(x, replace(_relu(ops), predictor=predictor), numbers((2, HIDDEN), 0))


def _vector(ops: NativeOps, size: int) -> NativeVector:
    return ops.vector(vector_tensor(numbers((size,), 0)))
