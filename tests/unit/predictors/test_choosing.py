"""Which kind a layer gets and what it is predicted to cost: examples worked out by hand."""

from pathlib import Path

import numpy as np
import pytest

from powerinfer.gguf import Tensor
from powerinfer.ops.backend import (
    Matrix,
    SomeFFN,
    Vector,
    as_backend,
)
from powerinfer.ops.protocol import FFN, Linear, MatrixUse
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.predictors import LayerChoice, PredictorInput, Scorer
from powerinfer.predictors.calibration import (
    DEFAULT_DIAL,
    Calibration,
    Curve,
    CurvePoint,
    Dial,
    LayerCalibration,
)
from powerinfer.predictors.choosing import (
    FFNBytes,
    PredictorBytes,
    choose,
    choose_for_model,
    closest_point,
    point_for,
)
from powerinfer.predictors.predictor import ScorePart
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind


def _point(
    *, recall: float = 1.0, error: float = 0.0, high: float = 0.0, time: float = 0.5, at: float = 0
) -> CurvePoint:
    return CurvePoint((at,), 0.2, recall, 0.5, error, time, high)


def _layer(
    curves: dict[str, Curve], choice: LayerChoice, num_active: tuple[int, ...] = (1, 0)
) -> LayerCalibration:
    zeros = np.zeros(2, np.float32)
    return LayerCalibration(np.array(num_active, np.int64), zeros, zeros, curves, choice)


# The dial


@pytest.mark.parametrize("recall", [0.9, 0.99, 0.999])
def test_a_dial_of_recall_keeps_a_tenth_of_what_may_be_missed_in_reserve(recall: float) -> None:
    """On other text a little more is missed than as measured."""
    may_be_missed = 1.0 - recall
    good = _point(recall=1.0 - 0.89 * may_be_missed)
    bad = _point(recall=1.0 - 0.91 * may_be_missed)
    assert point_for((good,), Dial(recall=recall)) is good
    assert point_for((bad,), Dial(recall=recall)) is None


def test_a_recall_of_one_is_met_by_points_that_miss_nothing() -> None:
    assert point_for((_point(recall=1.0),), Dial(recall=1.0)) is not None
    assert point_for((_point(recall=0.99999),), Dial(recall=1.0)) is None


def test_a_dial_of_recall_does_not_look_at_the_error() -> None:
    assert point_for((_point(recall=1.0, error=9.0, high=9.0),), Dial(recall=0.9)) is not None


def test_a_dial_of_error_limits_the_measured_error_and_its_upper_limit() -> None:
    dial = Dial(max_ffn_error=0.25)
    assert point_for((_point(error=0.25, high=0.125),), dial) is not None
    assert point_for((_point(error=0.125, high=0.25),), dial) is not None
    assert point_for((_point(error=0.26, high=0.125),), dial) is None
    assert point_for((_point(error=0.125, high=0.26),), dial) is None
    assert point_for((_point(recall=0.1),), dial) is not None


def test_a_dial_of_nothing_allows_everything() -> None:
    assert point_for((_point(recall=0.0, error=9.0, high=9.0),), Dial()) is not None


def test_dials_are_shown_by_name_and_value() -> None:
    assert str(Dial(recall=0.95)) == "recall 0.95"
    assert str(DEFAULT_DIAL) == "FFN error 0.01"


# Points


def test_the_fastest_point_is_taken() -> None:
    slow, fast, faster = _point(time=0.5), _point(time=0.3), _point(time=0.2, recall=0.5)
    assert point_for((slow, fast, faster), Dial(recall=0.9)) is fast
    assert point_for((), Dial(recall=0.9)) is None


def test_where_no_point_is_within_the_dial_the_most_careful_is_closest() -> None:
    careless = _point(error=0.3, time=0.1, recall=0.9)
    careful = _point(error=0.2, time=0.4, recall=0.7)
    more_recall = _point(error=0.2, time=0.8, recall=0.8)
    curve = (careless, careful, more_recall)
    assert closest_point(curve, Dial(max_ffn_error=0.1)) is more_recall
    # All are within this one: the fastest.
    assert closest_point(curve, Dial(max_ffn_error=0.5)) is careless
    assert closest_point((), DEFAULT_DIAL) is None


# Kinds


def test_the_fastest_kind_is_chosen_with_its_thresholds() -> None:
    curves = {
        "sign": (_point(time=0.5, at=1),),
        "lowbit:2": (_point(time=0.9, at=4), _point(time=0.4, at=2)),
        "mlp": (_point(time=0.6, at=3),),
    }
    assert choose(curves, DEFAULT_DIAL) == LayerChoice("lowbit:2", (2,))


def test_of_equally_fast_kinds_the_first_is_chosen() -> None:
    curves = {"sign": (_point(at=1),), "mlp": (_point(at=2),)}
    assert choose(curves, DEFAULT_DIAL) == LayerChoice("sign", (1,))


def test_exact_stays_where_nothing_is_faster_or_within_the_dial() -> None:
    as_fast, careless = (_point(time=1.0),), (_point(time=0.1, error=0.5),)
    assert choose({"sign": as_fast, "mlp": careless}, DEFAULT_DIAL) == LayerChoice("exact")
    # A kind behind one that does not fit is looked at too.
    good = (_point(time=0.99, at=7),)
    assert choose({"mlp": careless, "sign": good}, DEFAULT_DIAL) == LayerChoice("sign", (7,))


def test_another_dial_chooses_again_and_keeps_what_was_measured() -> None:
    tight, loose = _point(error=0.001, time=0.8, at=1), _point(error=0.1, time=0.2, at=2)
    layer = _layer({"sign": (tight, loose)}, LayerChoice("sign", (1,)))
    quiet = _layer({}, LayerChoice("exact"))
    before = Calibration("id", "relu", "text", 10, DEFAULT_DIAL, (layer, quiet))
    dial = Dial(max_ffn_error=0.2)
    after = choose_for_model(before, dial)
    assert after.choices == (LayerChoice("sign", (2,)), LayerChoice("exact"))
    assert after.dial == dial
    assert after.layers[0].curves == layer.curves
    assert (after.model_identity, after.activation) == ("id", "relu")
    assert (after.text_name, after.num_tokens) == ("text", 10)
    assert before.choices == (LayerChoice("sign", (1,)), LayerChoice("exact"))
    with pytest.raises(ValueError, match="shorter"):
        before.chosen(dial, [LayerChoice("exact")])


def test_the_chosen_point_is_that_of_kind_and_thresholds() -> None:
    first, second = _point(time=0.8, at=1), _point(time=0.2, at=2)
    curves = {"mlp": (_point(at=2),), "sign": (first, second)}
    assert _layer(curves, LayerChoice("sign", (2,))).chosen_point is second
    assert _layer(curves, LayerChoice("sign", (3,))).chosen_point is None
    assert _layer(curves, LayerChoice("exact")).chosen_point is None


# Shares


def test_the_hot_share_is_of_the_fewest_neurons_that_make_so_many_activations() -> None:
    # 8 + 4 of 16 are three quarters, with 3 more 0.9375, with the last 1.
    layer = _layer({}, LayerChoice("exact"), (1, 8, 0, 3, 4))
    assert layer.hot_share(0.5) == 0.2
    assert layer.hot_share(0.75) == 0.4
    assert layer.hot_share(0.76) == 0.6
    assert layer.hot_share() == 0.6
    assert layer.hot_share(1.0) == 0.8
    # The default is four fifths: 12 of 15 in one neuron reach it, 11 of 15 do not.
    assert _layer({}, LayerChoice("exact"), (12, 3)).hot_share() == 0.5
    assert _layer({}, LayerChoice("exact"), (11, 4)).hot_share() == 1.0
    # One activation is some, none is nothing.
    assert _layer({}, LayerChoice("exact"), (0, 1)).hot_share() == 0.5
    assert _layer({}, LayerChoice("exact"), (0, 0)).hot_share() == 0.0


def test_the_active_share_is_over_all_tokens() -> None:
    layers = tuple(_layer({}, LayerChoice("exact"), counts) for counts in ((8, 2), (4, 0)))
    found = Calibration("id", "relu", "text", 10, DEFAULT_DIAL, layers)
    assert [found.active_share(0), found.active_share(1)] == [0.5, 0.2]


# Times: single rows come at 0.6 of the speed of a plain read


def test_the_exact_time_counts_gathered_rows_at_six_tenths_of_the_speed() -> None:
    block = FFNBytes(num_neurons=10, decider=100, up=60, down=30, is_down_skippable=True)
    # Per neuron 100, half of 60 at 0.6 is 50, a fifth of 30 at 0.6 is 10.
    assert block.exact_time(firing=0.5, active=0.2) == pytest.approx(1600)
    whole = FFNBytes(num_neurons=10, decider=100, up=60, down=30, is_down_skippable=False)
    assert whole.exact_time(firing=0.5, active=0.2) == pytest.approx(1800)


def test_the_predicted_time_counts_each_stage_for_those_that_reach_it() -> None:
    block = FFNBytes(num_neurons=10, decider=90, up=60, down=30, is_down_skippable=True)
    predictor = PredictorBytes(hidden_layer=1000, stage_rows=(7.0, 12.0, 24.0))
    # Per neuron: 7 for all; 12 for half at 0.6 is 10; 24 for a quarter at 0.6 is 10; the decider,
    # 90 for a fifth at 0.6, is 30; up 60 for a tenth at 0.6 is 10; down 30 for 0.04 at 0.6 is 2.
    found = block.predicted_time(predictor, (0.5, 0.25, 0.2), firing=0.1, active=0.04)
    assert found == pytest.approx(1000 + 10 * (7 + 10 + 10 + 30 + 10 + 2))
    one_stage = PredictorBytes(hidden_layer=0, stage_rows=(7.0,))
    found = block.predicted_time(one_stage, (0.2,), firing=0.1, active=0.04)
    assert found == pytest.approx(10 * (7 + 30 + 10 + 2))


# Bytes: 64 columns are 68 bytes in q8_0, 128 in f16, 256 in f32

OPS = as_backend(ReferenceOps())


def _matrix(rows: int, columns: int, name: str = "f32") -> Matrix:
    num_bytes = rows * get_format(name).num_bytes(columns)
    tensor = Tensor("test", (rows, columns), name, np.zeros(num_bytes, np.uint8), Path())
    return OPS.matrix(tensor, MatrixUse.NEURONS)


def _block(*, is_gated: bool, is_down_transposed: bool) -> SomeFFN:
    ffn: FFN[Matrix, Vector] = FFN(
        gate=Linear(_matrix(96, 64, "q8_0")) if is_gated else None,
        up=Linear(_matrix(96, 64, "f16")),
        down=Linear(_matrix(96, 64) if is_down_transposed else _matrix(64, 96)),
        activation=Activation(ActivationKind.RELU),
        is_down_transposed=is_down_transposed,
        is_exact_sparse=True,
        native=None,
    )
    return OPS.ffn_weights(ffn)


def test_bytes_of_a_block_are_those_of_its_rows() -> None:
    gated = FFNBytes.of(OPS, _block(is_gated=True, is_down_transposed=True))
    assert gated == FFNBytes(96, 68, 128, 256, is_down_skippable=True)
    ungated = FFNBytes.of(OPS, _block(is_gated=False, is_down_transposed=False))
    assert ungated == FFNBytes(96, 128, 0, 256, is_down_skippable=False)


def test_bytes_of_a_predictor_are_its_hidden_layer_and_the_rows_of_its_stages() -> None:
    parts = ScorePart(_matrix(96, 64, "q8_0")), ScorePart(_matrix(1, 64))
    first = Scorer(PredictorInput.FFN_INPUT, parts[:1], fc1=_matrix(16, 64))
    second = Scorer(PredictorInput.FFN_INPUT, (*parts[1:], ScorePart(_matrix(96, 64, "f16"))))
    assert PredictorBytes.of(OPS, (first,)) == PredictorBytes(16 * 256, (68.0,))
    assert PredictorBytes.of(OPS, (second,)) == PredictorBytes(0, (256.0, 128.0))
    assert PredictorBytes.of(OPS, (first, second)).stage_rows == (68.0, 256.0, 128.0)
