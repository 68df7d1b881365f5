"""What a calibration measures in a mixture of experts, against the definitions, token by token."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from powerinfer.calibration import ground_truth
from powerinfer.calibration.curves import measure_curve
from powerinfer.calibration.ground_truth import GroundTruth, count_active
from powerinfer.calibration.scores import PartScores
from powerinfer.gguf import Tensor
from powerinfer.ops.backend import Matrix, SomeFFN, Vector, as_backend
from powerinfer.ops.operands import Router, RouterRule
from powerinfer.ops.protocol import FFN, Linear, MatrixUse
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.predictors import PredictorInput, Scorer
from powerinfer.predictors.calibration import Dial
from powerinfer.predictors.choosing import FFNBytes, PredictorBytes
from powerinfer.predictors.predictor import ScorePart, fused_predictor
from powerinfer.values import Activation, ActivationKind, FloatArray

OPS = as_backend(ReferenceOps())
HIDDEN, SIZE, EXPERTS, USED, RANK = 8, 5, 6, 2, 4
TOKENS = 11

Mask = npt.NDArray[np.bool_]


def _numbers(*shape: int, seed: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _matrix(values: FloatArray) -> Matrix:
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    return OPS.matrix(Tensor("test", values.shape, "f32", data, Path()), MatrixUse.NEURONS)


GATE, UP, DOWN = (_numbers(EXPERTS * SIZE, HIDDEN, seed=seed) for seed in range(3))
ROUTER = _numbers(EXPERTS, HIDDEN, seed=3)
DOWN_BIAS = _numbers(EXPERTS * HIDDEN, seed=4)
X, SEEN = (_numbers(TOKENS, HIDDEN, seed=seed) for seed in (5, 6))


def _ffn(
    kind: ActivationKind = ActivationKind.RELU, num_used: int = USED, *, is_gated: bool = True
) -> SomeFFN:
    router: Router[Matrix, Vector] = Router(
        Linear(_matrix(ROUTER)), EXPERTS, num_used, RouterRule.SIGMOID, is_normalized=True
    )
    ffn: FFN[Matrix, Vector] = FFN(
        gate=Linear(_matrix(GATE)) if is_gated else None,
        up=Linear(_matrix(UP)),
        down=Linear(_matrix(DOWN), OPS.constant(DOWN_BIAS)),
        activation=Activation(kind),
        is_down_transposed=True,
        is_exact_sparse=True,
        router=router,
        native=None,
    )
    return OPS.ffn_weights(ffn)


def _chosen(seen: FloatArray, num_used: int = USED) -> list[list[int]]:
    """Neuron ids of the experts of each token."""
    logits = seen.astype(np.float64) @ ROUTER.T.astype(np.float64)
    found = []
    for row in logits:
        experts = sorted(np.argsort(-row, kind="stable")[:num_used])
        found.append([int(e) * SIZE + i for e in experts for i in range(SIZE)])
    return found


def _values(kind: ActivationKind, *, is_gated: bool = True) -> npt.NDArray[np.float64]:
    """f64[TOKENS, EXPERTS * SIZE], before the weights of experts."""
    x = X.astype(np.float64)
    gate, up = np.maximum(x @ (GATE if is_gated else UP).T, 0), x @ UP.T
    if not is_gated:
        return gate
    return gate * (np.maximum(up, 0) if kind is ActivationKind.DRELU else up)


@pytest.fixture(autouse=True)
def several_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ground_truth, "_CHUNK", 4)


SEEN_OR_NOT = pytest.mark.parametrize("seen", [None, SEEN], ids=["of x", "of another input"])


@SEEN_OR_NOT
@pytest.mark.parametrize("num_used", [1, USED, EXPERTS])
@pytest.mark.parametrize("kind", [ActivationKind.RELU, ActivationKind.DRELU])
def test_only_neurons_of_the_own_experts_count(
    kind: ActivationKind, num_used: int, seen: FloatArray | None
) -> None:
    ffn = _ffn(kind, num_used)
    truth = GroundTruth(OPS, ffn, X, None, seen)
    experts, weights = OPS.route(X if seen is None else seen, ffn)
    values = _values(kind)
    counts = np.zeros(EXPERTS * SIZE, np.int64)
    energy: list[float] = []
    for token, ids in enumerate(_chosen(X if seen is None else seen, num_used)):
        assert [int(i) for i in experts[token]] == [ids[place] // SIZE for place in _firsts(ids)]
        active = values[token, ids] != 0
        assert truth.active[token].tolist() == active.tolist()
        assert truth.fires[token].tolist() == (GATE[ids] @ X[token] > 0).tolist()
        counts[np.array(ids)[active]] += 1
        weighed = values[token, ids] * np.repeat(weights[token], SIZE)
        energy += [float(value) ** 2 for value in weighed[active]]
    assert truth.active.shape == (TOKENS, num_used * SIZE)
    np.testing.assert_allclose(truth.energy, energy, rtol=1e-5)
    assert truth.num_active.tolist() == counts.tolist()
    assert count_active(OPS, ffn, X, seen).tolist() == counts.tolist()
    assert 0 < counts.sum() < TOKENS * num_used * SIZE


def _firsts(ids: list[int]) -> range:
    return range(0, len(ids), SIZE)


@SEEN_OR_NOT
def test_the_error_is_what_skipping_loses(seen: FloatArray | None) -> None:
    """Against two runs of the block, one of them over the neurons that were predicted."""
    ffn = _ffn()
    truth = GroundTruth(OPS, ffn, X, None, seen)
    predicted = np.random.default_rng(7).random(truth.active.shape) < 0.6
    full = OPS.to_host(OPS.ffn(X, ffn, None, None, seen)).astype(np.float64)
    ids = truth.routing.ids(predicted)
    part = OPS.to_host(OPS.ffn_active(X, ffn, ids, None, seen)).astype(np.float64)
    expected = np.sqrt(np.square(full - part).sum() / np.square(full).sum())
    found = truth.ffn_error(predicted)
    assert found.value == pytest.approx(expected, rel=1e-5)
    assert found.high >= found.value > 0
    assert truth.ffn_error(truth.active).value == 0


def test_damage_in_the_router_is_seen() -> None:
    seen = SEEN.copy()
    seen[3] = np.nan
    assert GroundTruth(OPS, _ffn(), X, None, SEEN).is_finite
    assert not GroundTruth(OPS, _ffn(), X, None, seen).is_finite


def test_time_is_of_the_neurons_that_a_token_may_run() -> None:
    row = 4 * HIDDEN
    found = FFNBytes.of(OPS, _ffn())
    assert found == FFNBytes(USED * SIZE, row, row, row, is_down_skippable=True)
    hidden = _numbers(EXPERTS * RANK, HIDDEN, seed=8)
    rows = (ScorePart(_matrix(_numbers(EXPERTS * SIZE, RANK, seed=9))),)
    own = Scorer(PredictorInput.FFN_INPUT, rows, fc1=_matrix(hidden), num_experts=EXPERTS)
    assert PredictorBytes.of(OPS, (own,), USED / EXPERTS).hidden_layer == USED * RANK * row
    shared = replace(own, fc1=_matrix(hidden[:RANK]), num_experts=1)
    assert PredictorBytes.of(OPS, (shared,), USED / EXPERTS).hidden_layer == RANK * row


# Scores


def _copies() -> Scorer:
    """Two stages with everything that a stage may have."""
    offset, noise = (_numbers(EXPERTS * SIZE, seed=seed) for seed in (10, 11))
    parts = (ScorePart(_matrix(GATE), offset, np.abs(noise) + 1), ScorePart(_matrix(UP)))
    return Scorer(PredictorInput.FFN_INPUT, parts, center=_numbers(HIDDEN, seed=12))


def _own_hidden_layers() -> Scorer:
    fc1 = _matrix(_numbers(EXPERTS * RANK, HIDDEN, seed=13))
    # Columns beyond the rank meet zeros.
    fc2 = ScorePart(_matrix(_numbers(EXPERTS * SIZE, RANK + 3, seed=14)))
    return Scorer(PredictorInput.FFN_INPUT, (fc2,), fc1=fc1, num_experts=EXPERTS)


def _one_hidden_layer() -> Scorer:
    fc1 = _matrix(_numbers(RANK, HIDDEN, seed=15))
    part = ScorePart(_matrix(_numbers(EXPERTS * SIZE, RANK, seed=16)), _numbers(30, seed=17))
    return Scorer(PredictorInput.FFN_INPUT, (part,), fc1=fc1)


SCORERS = pytest.mark.parametrize("make", [_copies, _own_hidden_layers, _one_hidden_layer])


@SCORERS
@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.7])
def test_what_passes_is_what_the_backend_lets_pass(
    make: Callable[[], Scorer], threshold: float
) -> None:
    scorer = make()
    truth = GroundTruth(OPS, _ffn(), X, None, SEEN)
    scores = PartScores.measure(OPS, scorer, X, truth.routing)
    predictor = fused_predictor(OPS, (scorer,), (threshold,))
    expected = truth.routing.mask(OPS.predict(X, predictor))
    passed = np.logical_and.reduce([stage >= threshold for stage in scores.stages])
    np.testing.assert_array_equal(passed, expected)
    assert 0 < expected.mean() < 1


@SCORERS
def test_points_of_a_curve_are_shares_of_the_own_experts(make: Callable[[], Scorer]) -> None:
    ffn = _ffn()
    truth = GroundTruth(OPS, ffn, X, None, SEEN)
    parts = (PartScores.measure(OPS, make(), X, truth.routing),)
    curve = measure_curve(parts, truth, FFNBytes.of(OPS, ffn), Dial(max_ffn_error=0.3))
    chosen, values = _chosen(SEEN), _values(ActivationKind.RELU)
    active = np.array([values[token, ids] != 0 for token, ids in enumerate(chosen)])
    for point in curve:
        passed = parts[0].lowest >= np.float32(point.thresholds[0])
        assert point.density == pytest.approx(passed.sum() / (TOKENS * USED * SIZE), rel=1e-5)
        assert point.recall == pytest.approx((passed & active).sum() / active.sum(), rel=1e-5)
    assert curve[0].recall == 1.0
    assert curve[0].ffn_error == 0.0
    assert curve[-1].recall < 1.0
