"""Errors and curves of one small FFN, whose every number can be worked out by hand.

Three neurons look at (a, b): a, b and a + b, through ReLU; their rows of down are (1, 0), (0, 2)
and (3, 0).
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from powerinfer.calibration import ground_truth
from powerinfer.calibration.curves import measure_curve
from powerinfer.calibration.ground_truth import GroundTruth, count_active
from powerinfer.calibration.routing import Routing
from powerinfer.calibration.scores import PartScores
from powerinfer.gguf import Tensor
from powerinfer.ops.backend import (
    Matrix,
    SomeFFN,
    SomeLinear,
    Vector,
    as_backend,
)
from powerinfer.ops.protocol import FFN, Linear, MatrixUse
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.predictors import PredictorInput, Scorer
from powerinfer.predictors.calibration import Dial
from powerinfer.predictors.choosing import FFNBytes, PredictorBytes
from powerinfer.predictors.predictor import ScorePart
from powerinfer.values import Activation, ActivationKind, FloatArray

OPS = as_backend(ReferenceOps())
# Two f32 of up and two of down.
NEURON_BYTES = 16


def _linear(rows: list[list[float]], bias: list[float] | None = None) -> SomeLinear:
    values = np.array(rows, np.float32)
    data = values.reshape(-1).view(np.uint8)
    tensor = Tensor("test", values.shape, "f32", data, Path())
    added = None if bias is None else OPS.constant(np.array(bias, np.float32))
    return Linear(OPS.matrix(tensor, MatrixUse.NEURONS), added)


def _ffn(
    *, gate: list[list[float]] | None = None, kind: ActivationKind = ActivationKind.RELU
) -> SomeFFN:
    ffn: FFN[Matrix, Vector] = FFN(
        gate=None if gate is None else _linear(gate),
        up=_linear([[1, 0], [0, 1], [1, 1]]),
        down=_linear([[1, 0], [0, 2], [3, 0]]),
        activation=Activation(kind),
        is_down_transposed=True,
        is_exact_sparse=True,
        native=None,
    )
    return OPS.ffn_weights(ffn)


def _truth(*x: tuple[float, float], firsts: list[int] | None = None) -> GroundTruth:
    is_first = None if firsts is None else np.isin(np.arange(len(x)), firsts)
    return GroundTruth(OPS, _ffn(), np.array(x, np.float32), is_first)


HALVES = [(1.0, 0.0)] * 32 + [(0.0, 1.0)] * 32
WITHOUT_FIRST = np.array([False, True, True])


# What really happens


def test_values_of_neurons_are_what_the_activation_leaves() -> None:
    truth = _truth((1, 2), (-1, 2), (-1, -2))
    assert truth.active.tolist() == [[True] * 3, [False, True, True], [False] * 3]
    assert truth.fires.tolist() == truth.active.tolist()
    assert truth.energy.tolist() == [1, 4, 9, 4, 1]
    assert truth.num_active.tolist() == [1, 2, 2]
    assert truth.is_finite
    assert not truth.firsts.any()


def test_with_a_gate_firing_and_being_active_differ() -> None:
    x = np.array([(1, 2), (2, -1)], np.float32)
    truth = GroundTruth(OPS, _ffn(gate=[[0, 1], [1, 0], [0, 0]]), x)
    # Gates 2, 1, 0 and -1, 2, 0; up 1, 2, 3 and 2, -1, 1: the products of what fires.
    assert truth.fires.tolist() == [[True, True, False], [False, True, False]]
    assert truth.energy.tolist() == [4, 4, 4]
    both = _ffn(gate=[[0, 1], [1, 0], [0, 0]], kind=ActivationKind.DRELU)
    drelu = GroundTruth(OPS, both, x)
    assert drelu.active.tolist() == [[True, True, False], [False, False, False]]


def test_activity_is_counted_over_any_number_of_tokens() -> None:
    x = np.array(HALVES * 5, np.float32)
    assert count_active(OPS, _ffn(), x).tolist() == [160, 160, 320]
    truth = GroundTruth(OPS, _ffn(), x)
    assert truth.num_active.tolist() == [160, 160, 320]
    assert truth.active.shape == (320, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_damage_is_seen(value: float) -> None:
    assert not _truth((1, 2), (value, 1)).is_finite


# Errors


def test_nothing_is_lost_where_all_that_is_active_is_predicted() -> None:
    truth = _truth((1, 2), (-1, 2))
    error = truth.ffn_error(truth.active)
    assert (error.value, error.high) == (0.0, 0.0)


def test_the_error_is_what_the_missed_neurons_add() -> None:
    # Outputs (10, 4) and (3, 4); of the first (1, 0) is missed, of the second nothing.
    error = _truth((1, 2), (-1, 2)).ffn_error(np.tile(WITHOUT_FIRST, (2, 1)))
    assert error.value == pytest.approx(np.sqrt(1 / (116 + 25)))
    # Too few tokens to tell: twice the square.
    assert error.high == pytest.approx(np.sqrt(2 / (116 + 25)))


def test_the_limit_is_three_standard_errors_between_blocks_of_32_tokens() -> None:
    """Squares 1 of 16 are lost in one block, 0 of 13 in the other: 1 / 29 on average.

    The blocks are 32 * 13 / 29 above and below it; by Cochran's formula the variance is
    2 * 2 * (32 * 13 / 29)^2 / (32 * 29)^2 = (26 / 841)^2.
    """
    error = _truth(*HALVES).ffn_error(np.tile(WITHOUT_FIRST, (64, 1)))
    assert error.value == pytest.approx(np.sqrt(1 / 29))
    assert error.high == pytest.approx(np.sqrt(1 / 29 + 3 * 26 / 841))


def test_first_tokens_count_in_the_error_but_do_not_hide_that_of_others() -> None:
    """The first writes 13 million, beside which 31 of 912 are nothing.

    Without it: ratio r = 31 / 912, both blocks 31 - 496 r = 14.14 off, so a standard error of
    2 * 14.14 / 912.
    """
    x = [(0.0, 1000.0), *HALVES[1:]]
    error = _truth(*x, firsts=[0]).ffn_error(np.tile(WITHOUT_FIRST, (64, 1)))
    assert error.value == pytest.approx(np.sqrt(31 / (13e6 + 912)))
    assert error.high == pytest.approx(np.sqrt(31 / 912 + 3 * 2 * 14.14035 / 912), rel=1e-5)
    hidden = _truth(*x).ffn_error(np.tile(WITHOUT_FIRST, (64, 1)))
    assert hidden.high < 0.01


def test_large_errors_are_measured_on_every_nth_token(monkeypatch: pytest.MonkeyPatch) -> None:
    x = [(1.0, 0.0), (0.0, 1.0)] * 32
    predicted = np.tile(WITHOUT_FIRST, (64, 1))
    assert _truth(*x).ffn_error(predicted).value == pytest.approx(np.sqrt(1 / 29))
    # 32 neurons are missed. For 32 there is room, for 31 only with every second token: the even.
    monkeypatch.setattr(ground_truth, "_MOST_BYTES", 32 * NEURON_BYTES)
    assert _truth(*x).ffn_error(predicted).value == pytest.approx(np.sqrt(1 / 29))
    monkeypatch.setattr(ground_truth, "_MOST_BYTES", 31 * NEURON_BYTES)
    assert _truth(*x).ffn_error(predicted).value == pytest.approx(np.sqrt(1 / 16))


def test_a_bias_of_down_is_not_lost_with_the_neurons() -> None:
    """The output of (1, 2) is (10, 4) and the bias (1, 1); (1, 0) of (11, 5) is missed."""
    ffn = OPS.ffn_weights(replace(_ffn(), down=_linear([[1, 0], [0, 2], [3, 0]], [1, 1])))
    truth = GroundTruth(OPS, ffn, np.array([(1, 2)], np.float32))
    error = truth.ffn_error(WITHOUT_FIRST[np.newaxis])
    assert error.value == pytest.approx(np.sqrt(1 / 146))


def test_of_an_output_of_nothing_all_is_lost_or_none() -> None:
    nothing, rows = np.zeros(2), np.arange(2)
    assert ground_truth._ratio(nothing, nothing, rows) == (0.0, 0.0)
    assert ground_truth._ratio(np.array([0.0, 3.0]), nothing, rows) == (1.0, 1.0)


# Curves

BYTES = FFNBytes(num_neurons=3, decider=8, up=0, down=8, is_down_skippable=True)


def _scores(*rows: tuple[float, float, float], row_bytes: float = 4.0) -> PartScores:
    return PartScores((np.array(rows, np.float32),), PredictorBytes(0, (row_bytes,)))


def test_a_predictor_that_separates_perfectly_has_one_point() -> None:
    """Active neurons score 3 to 5, the others less: a threshold just below 3 loses nothing."""
    scores = _scores(*[(5, 1, 4)] * 32, *[(-1, 3, 4)] * 32)
    (point,) = measure_curve((scores,), _truth(*HALVES), BYTES, Dial(recall=0.9))
    assert point.thresholds == (2.99994,)
    assert (point.density, point.recall, point.precision) == (0.666667, 1.0, 1.0)
    assert (point.ffn_error, point.ffn_error_high) == (0.0, 0.0)
    # 4 bytes of every neuron, then two of three deciders and values at 0.6 of the speed, against
    # all deciders and two of three values.
    gathered = 2 / 3 * 8 / 0.6
    assert point.time == pytest.approx((4 + 2 * gathered) / (8 + gathered), abs=1e-5)


def test_thresholds_rise_as_more_may_be_lost() -> None:
    """Values 0.1, 2 and 2.1: a hundredth of 8.42 is lost from an estimate of 0.034 on."""
    curve = measure_curve((_scores((0.1, 2, 3)),), _truth((0.1, 2)), BYTES, Dial(recall=0.9))
    assert [point.thresholds for point in curve] == [(0.099998,), (1.99996,)]
    assert [point.density for point in curve] == [1.0, 0.666667]
    assert [point.recall for point in curve] == [1.0, 0.666667]
    assert [point.precision for point in curve] == [1.0, 1.0]
    # (0.1, 0) of (6.4, 4) is lost.
    assert curve[1].ffn_error == pytest.approx(0.1 / np.sqrt(56.96), rel=1e-5)
    assert curve[1].ffn_error_high == pytest.approx(0.1 * np.sqrt(2 / 56.96), rel=1e-5)
    everything, some = 8 / 0.6, 2 / 3 * 8 / 0.6
    exact = 8 + everything
    assert curve[0].time == pytest.approx((4 + 2 * everything) / exact, abs=1e-5)
    assert curve[1].time == pytest.approx((4 + 2 * some) / exact, abs=1e-5)


def test_of_a_cascade_the_last_part_may_lose_most() -> None:
    """Values 0.02, 1 and 1.02: 0.0004 of 2.0408 is lost by the last part from an estimate of
    0.014 on, by the first, which may lose a quarter, from twice that."""
    parts = (_scores((1, 2, 3)), _scores((5, 6, 7), row_bytes=2.0))
    curve = measure_curve(parts, _truth((0.02, 1)), BYTES, Dial(recall=0.9))
    found = sorted(point.thresholds for point in curve)
    assert found == [(0.99998, 4.9999), (0.99998, 5.99988), (1.99996, 5.99988)]
    by_thresholds = {point.thresholds: point for point in curve}
    both, first = by_thresholds[1.99996, 5.99988], by_thresholds[0.99998, 5.99988]
    assert both.density == first.density == 0.666667
    # The second part is asked for all neurons, or for two of three, at 0.6 of the speed.
    exact = 8 + 8 / 0.6
    rest = 2 * (2 / 3 * 8 / 0.6)
    assert first.time == pytest.approx((4 + 2 / 0.6 + rest) / exact, abs=1e-5)
    assert both.time == pytest.approx((4 + 2 / 3 * 2 / 0.6 + rest) / exact, abs=1e-5)


def test_near_the_dial_thresholds_are_closer() -> None:
    """Ninety values that rise by a hundredth, each its own score."""
    x = [(0.01 * number, -1.0) for number in range(1, 91)]
    scores = _scores(*[(a, -1, a - 1) for a, _ in x])
    truth = _truth(*x)
    coarse = measure_curve((scores,), truth, BYTES, Dial(recall=0.9))
    fine = measure_curve((scores,), truth, BYTES, Dial(max_ffn_error=0.15))
    assert set(coarse) < set(fine)
    added = [point for point in fine if point not in coarse]
    highs = sorted(point.ffn_error_high for point in coarse)
    below = max(high for high in highs if high <= 0.15)
    above = min(high for high in highs if high > 0.15)
    assert all(below <= point.ffn_error_high <= above for point in added)
    closest = max(point.ffn_error_high for point in fine if point.ffn_error_high <= 0.15)
    assert closest > below


def test_where_nothing_is_active_nothing_is_missed() -> None:
    curve = measure_curve((_scores((1, 2, 3)),), _truth((-1, -1)), BYTES, Dial(recall=0.9))
    assert [(point.recall, point.ffn_error) for point in curve] == [(1.0, 0.0)]
    # No score of an active neuron is known: only the highest passes, and in vain.
    assert (curve[0].thresholds, curve[0].density, curve[0].precision) == ((3.0,), 0.333333, 0.0)


def test_where_nothing_is_active_a_threshold_is_not_below_zero() -> None:
    curve = measure_curve((_scores((-1, -2, -3)),), _truth((-1, -1)), BYTES, Dial(recall=0.9))
    assert [(point.thresholds, point.density) for point in curve] == [((0.0,), 0.0)]


# Scores


def test_a_part_scores_by_its_matrix_offset_and_noise() -> None:
    """((x - center) @ up + offset) / noise, and what it reads."""
    up = _linear([[1, 0], [0, 1], [1, 1]]).matrix
    x = np.array([(3, 5), (1, 1)], np.float32)
    center: FloatArray = np.array([1, 2], np.float32)
    part = ScorePart(up, np.array([10, 20, 30], np.float32), np.array([1, 2, 4], np.float32))
    scorer = Scorer(PredictorInput.FFN_INPUT, (part, ScorePart(up)), center=center)
    found = PartScores.measure(OPS, scorer, x, Routing.of(OPS, _ffn(), x))
    # Less the center: (2, 3) and (0, -1).
    assert found.stages[0].tolist() == [[12, 11.5, 8.75], [10, 9.5, 7.25]]
    assert found.stages[1].tolist() == [[2, 3, 5], [0, -1, -1]]
    assert found.lowest.tolist() == [[2, 3, 5], [0, -1, -1]]
    assert found.num_bytes == PredictorBytes(0, (8.0, 8.0))


def test_a_hidden_layer_comes_first_and_keeps_what_is_positive() -> None:
    hidden = _linear([[1, 0], [0, 1]]).matrix
    scorer = Scorer(
        PredictorInput.FFN_INPUT, (ScorePart(_linear([[1, 0], [0, 1], [1, 1]]).matrix),), hidden
    )
    x = np.array([(2, -3), (-1, 4), (1, 1), (2, 2), (3, 3)], np.float32)
    found = PartScores.measure(OPS, scorer, x, Routing.of(OPS, _ffn(), x))
    (stage,) = found.stages
    assert stage.tolist() == [[2, 0, 2], [0, 4, 4], [1, 1, 2], [2, 2, 4], [3, 3, 6]]
    assert found.lowest is stage
    assert found.num_bytes == PredictorBytes(16, (8.0,))
