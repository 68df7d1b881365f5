"""Measuring a model and choosing from what was measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from backends import using
from powerinfer.calibration.calibrate import calibrate, kinds_to_measure
from powerinfer.calibration.ground_truth import FFNError, GroundTruth
from powerinfer.calibration.recall import RecallMeter
from powerinfer.calibration.text import (
    CalibrationText,
    bundled_text,
    cut_windows,
    default_tokens,
)
from powerinfer.errors import NumericsError, PromptError, UnsupportedError
from powerinfer.gguf import open_gguf
from powerinfer.models import InputStatistics, Model, load_model, with_predictors
from powerinfer.models.blocks import Stage
from powerinfer.models.sparsity import layer_source
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.predictors import LayerChoice, build_predictor
from powerinfer.predictors.calibration import Calibration, CurvePoint, Dial
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.predictors.choosing import (
    GATHER_SPEED,
    FFNBytes,
    PredictorBytes,
    choose,
    choose_for_model,
    point_for,
)
from powerinfer.values import FloatArray
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

IDENTITY = "0123456789abcdef" * 4
DIAL = Dial(max_ffn_error=0.05)
TEXT = CalibrationText("random", np.random.default_rng(0).integers(3, 280, (4, 24), np.int32))
EXPERTS = ("mixtral-drelu-predictors", "mixtral-relu-biases", "smallthinker-predictors")
MODELS = ("bamboo", "llama-relu", "falcon-powerinfer", "llama-relu2", *EXPERTS)
RECIPES = TINY_MODELS | TINY_EXPERTS


def _load(folder: Path, name: str, ops: Backend | None = None) -> Model:
    path = write_model(folder / f"{name}.gguf", RECIPES[name])
    return load_model(open_gguf(path), ops or as_backend(ReferenceOps()))


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _load(tmp_path_factory.mktemp("models"), request.param)


@pytest.fixture(scope="module")
def measured(model: Model) -> Calibration:
    return calibrate(model, TEXT, identity=IDENTITY, dial=DIAL)


@pytest.fixture(scope="module")
def bamboo(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _load(tmp_path_factory.mktemp("models"), "bamboo")


class _Recorder:
    """Keeps what the FFNs and predictors of a pass get."""

    def __init__(self) -> None:
        self.inputs: dict[tuple[Stage, int], FloatArray] = {}

    def __call__(self, stage: Stage, number: int, x: FloatArray) -> None:
        self.inputs[stage, number] = x.copy()


def _inputs(model: Model) -> tuple[_Recorder, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """What layers get on TEXT, and which tokens fit and test."""
    recorder = _Recorder()
    cache = model.new_cache(512)
    exact = with_predictors(model, (LayerChoice("exact"),) * 2, name="exact")
    exact.forward(
        cache.batch(
            [(n, ids, 0) for n, ids in enumerate(TEXT.windows)], [True] * len(TEXT.windows)
        ),
        cache,
        observe=recorder,
    )
    place = np.arange(TEXT.windows.size).reshape(TEXT.windows.shape)
    return recorder, place[::2, 1:].reshape(-1), place[1::2].reshape(-1)


def _seen(recorder: _Recorder, number: int, tokens: npt.NDArray[np.intp]) -> FloatArray | None:
    """What the router of a layer sees, where that is not what the FFN gets."""
    found = recorder.inputs.get((Stage.ROUTER_INPUT, number))
    return None if found is None else found[tokens]


def test_statistics_are_of_the_fitting_half(model: Model, measured: Calibration) -> None:
    recorder, fit, _ = _inputs(model)
    for number, layer in enumerate(measured.layers):
        x = recorder.inputs[Stage.FFN_INPUT, number][fit].astype(np.float64)
        np.testing.assert_allclose(layer.mean, x.mean(axis=0), rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(layer.variance, x.var(axis=0), rtol=2e-5, atol=1e-9)


def test_counts_are_of_all_tokens_but_the_first_that_fit(
    model: Model, measured: Calibration
) -> None:
    recorder, fit, test = _inputs(model)
    assert measured.num_tokens == len(fit) + len(test)
    for number, layer in enumerate(measured.layers):
        ffn = model.weights.layers[number].ffn
        x = recorder.inputs[Stage.FFN_INPUT, number][np.concatenate([fit, test])]
        seen = _seen(recorder, number, np.concatenate([fit, test]))
        truth = GroundTruth(model.ops, ffn, x, None, seen)
        np.testing.assert_array_equal(layer.num_active, truth.num_active)
        assert 0 < measured.active_share(number) < 1
        used_share = measured.num_experts_used / measured.num_experts
        assert measured.active_share(number) * used_share <= layer.hot_share(1.0) <= 1
        assert layer.hot_share(0.8) < layer.hot_share(1.0)


def test_a_point_says_what_the_predictor_does(model: Model, measured: Calibration) -> None:
    """Built as the engine builds it and run on the test tokens, each point is what happens."""
    recorder, _, test = _inputs(model)
    for number, layer in enumerate(measured.layers):
        source = layer_source(model, number, InputStatistics(layer.mean, layer.variance))
        x = recorder.inputs[Stage.FFN_INPUT, number][test]
        seen = _seen(recorder, number, test)
        truth = GroundTruth(model.ops, source.ffn, x, None, seen)
        exact = build_predictor(model.ops, source, LayerChoice("exact")).ffn
        dense = truth.ops.to_host(truth.ops.ffn(x, exact, None, None, seen))
        for kind, curve in layer.curves.items():
            assert len(curve) > 3
            for point in (curve[0], curve[len(curve) // 2], curve[-1]):
                choice = LayerChoice(kind, point.thresholds)
                built = build_predictor(model.ops, source, choice)
                assert built.predictor is not None
                assert built.ffn.predictor is not None
                is_raw = built.predictor.input.value != "ffn_input"
                stage = Stage.PREDICTOR_INPUT if is_raw else Stage.FFN_INPUT
                raw = recorder.inputs[stage, number][test]
                active = model.ops.predict(raw, built.ffn.predictor)
                mask = truth.routing.mask(active)
                found = (mask & truth.active).sum()
                assert mask.mean() == pytest.approx(point.density, abs=2e-3), kind
                assert found / truth.active.sum() == pytest.approx(point.recall, abs=5e-3)
                assert found / max(1, mask.sum()) == pytest.approx(point.precision, abs=5e-3)
                sparse = model.ops.to_host(model.ops.ffn(x, built.ffn, raw, None, seen))
                error = np.sqrt(((dense - sparse) ** 2).sum() / (dense**2).sum())
                assert error == pytest.approx(point.ffn_error, rel=0.05, abs=2e-3)


def test_the_error_is_what_the_meter_measures(model: Model, measured: Calibration) -> None:
    """A layer that gets the same input loses what its curve says, first tokens and all."""
    statistics = [InputStatistics(layer.mean, layer.variance) for layer in measured.layers]
    exact = with_predictors(model, (LayerChoice("exact"),) * 2, name="exact")
    for kind in measured.layers[0].curves:
        for place in (2, -1):
            points = [layer.curves[kind][place] for layer in measured.layers]
            choices = [LayerChoice(kind, point.thresholds) for point in points]
            meter = RecallMeter(with_predictors(model, choices, name=kind, statistics=statistics))
            watched = replace(exact, observer=meter)
            cache = exact.new_cache(64)
            for number, ids in enumerate(TEXT.windows[1::2]):
                watched.forward(cache.batch([(number, ids, 0)], [True]), cache)
                cache = exact.new_cache(64)
            for point, sums in zip(points, meter.layers, strict=True):
                assert sums.ffn_error == pytest.approx(point.ffn_error, rel=0.05, abs=1e-5), kind
                assert sums.recall == pytest.approx(point.recall, abs=5e-3)
                assert point.ffn_error_high >= point.ffn_error


def test_the_limit_of_an_error_follows_its_spread(bamboo: Model) -> None:
    """The same loss is less certain where few tokens make it, or where the first one hides it."""
    ffn = bamboo.weights.layers[0].ffn
    x = np.random.default_rng(3).normal(size=(128, 32)).astype(np.float32)
    truth = GroundTruth(bamboo.ops, ffn, x)
    assert truth.ffn_error(truth.active) == FFNError(0.0, 0.0)
    some = truth.active & (np.arange(48) % 3 > 0)
    late = np.where(np.arange(128)[:, None] >= 96, some, truth.active)
    everywhere, at_the_end = truth.ffn_error(some), truth.ffn_error(late)
    assert everywhere.value < everywhere.high < 1.5 * everywhere.value
    assert at_the_end.high > 1.5 * at_the_end.value
    # As models with an attention sink: what is written for the first token outweighs all else.
    truth.firsts = np.arange(128) == 0
    truth._output_squares[0] = 1e3 * truth._output_squares.sum()
    sink = truth.ffn_error(some)
    assert sink.value < 0.1 * everywhere.value
    assert sink.high == pytest.approx(everywhere.high, rel=0.1)


@pytest.mark.parametrize("name", EXPERTS)
def test_a_calibration_knows_the_experts(tmp_path: Path, name: str) -> None:
    """Frequencies are of all tokens, shares of those neurons that may run for a token."""
    model = _load(tmp_path, name)
    found = calibrate(model, TEXT, identity=IDENTITY, dial=DIAL, kinds=("sign",))
    count, used = RECIPES[name].num_experts, RECIPES[name].num_used_experts
    assert (found.num_experts, found.num_experts_used) == (count, used)
    assert CALIBRATION.from_json(CALIBRATION.to_json(found), "f").num_experts_used == used
    recorder, fit, test = _inputs(model)
    for number, layer in enumerate(found.layers):
        tokens = np.concatenate([fit, test])
        x = recorder.inputs[Stage.FFN_INPUT, number][tokens]
        seen = _seen(recorder, number, tokens)
        assert (seen is None) == name.startswith("mixtral")
        experts, _ = model.ops.route(x if seen is None else seen, model.weights.layers[number].ffn)
        num_tokens = np.bincount(experts.reshape(-1), minlength=count)
        assert num_tokens.sum() == used * found.num_tokens
        by_expert = layer.num_active.reshape(count, 48)
        assert (by_expert.max(axis=1) <= num_tokens).all()
        share = layer.num_active.sum() / (num_tokens.sum() * 48)
        assert found.active_share(number) == pytest.approx(share)


def test_curves_go_from_everything_to_little(measured: Calibration) -> None:
    for layer in measured.layers:
        for curve in layer.curves.values():
            assert curve[0].recall == 1
            assert curve[0].ffn_error == 0
            densities = [point.density for point in curve]
            assert densities == sorted(densities, reverse=True)
            assert curve[-1].recall < 1


def test_choices_are_within_the_dial_and_fast(measured: Calibration) -> None:
    for layer in measured.layers:
        point = layer.chosen_point
        if point is None:
            assert layer.choice.kind == "exact"
        else:
            assert point.ffn_error <= point.ffn_error_high <= 0.05
            assert point.time < 1
        for kind in layer.curves:
            within = [p for p in layer.curves[kind] if p.ffn_error_high <= 0.05]
            assert min(p.time for p in within) >= (1 if point is None else point.time)


def test_the_backends_agree(tmp_path: Path, bamboo: Model) -> None:
    """Native scores quantize their input, so figures are near, not equal."""
    reference = calibrate(bamboo, TEXT, identity=IDENTITY, dial=DIAL)
    with using("native-portable") as ops:
        native = calibrate(_load(tmp_path, "bamboo", ops), TEXT, identity=IDENTITY, dial=DIAL)
    for ours, theirs in zip(reference.layers, native.layers, strict=True):
        np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-3, atol=1e-4)
        assert (ours.num_active != theirs.num_active).mean() < 0.1
        assert ours.curves.keys() == theirs.curves.keys()


def test_which_kinds_are_measured(tmp_path: Path) -> None:
    kinds = kinds_to_measure(_load(tmp_path, "bamboo"))
    assert {"mlp", "mlp:q8_0", "mlp:q4_0", "lowbit:2", "sign", "sign+lowbit:2"} <= set(kinds)
    assert not {"exact", "oracle"} & set(kinds)
    assert not any("mlp" in kind for kind in kinds_to_measure(_load(tmp_path, "llama-relu")))


def test_predictors_that_are_already_small_are_not_encoded_again(tmp_path: Path) -> None:
    recipe = replace(
        TINY_MODELS["bamboo"],
        format="q4_0",
        hidden_size=256,  # shorter rows of so few would be decoded
        intermediate_size=64,
        predictor_rank=32,
        other_formats={"fc1": "q8_0", "fc2": "q8_0"},
    )
    path = write_model(tmp_path / "q.gguf", recipe)
    kinds = kinds_to_measure(load_model(open_gguf(path), ReferenceOps()))
    assert "mlp:q4_0" in kinds
    assert not {"mlp:q8_0", "lowbit:4"} & set(kinds)
    assert {"lowbit:3", "sign"} <= set(kinds)


def test_dense_activations_and_odd_kinds_are_refused(tmp_path: Path, bamboo: Model) -> None:
    with pytest.raises(UnsupportedError, match="ReLU family"):
        calibrate(_load(tmp_path, "llama"), TEXT, identity=IDENTITY, dial=DIAL, kinds=("sign",))
    with pytest.raises(UnsupportedError, match="ReLU family"):
        calibrate(_load(tmp_path, "gpt-oss"), TEXT, identity=IDENTITY, dial=DIAL)
    with pytest.raises(UnsupportedError, match="zeros sets thresholds on silu and gelu"):
        calibrate(bamboo, TEXT, identity=IDENTITY, dial=Dial(zeros=0.5))
    with pytest.raises(UnsupportedError, match="'oracle' has no threshold"):
        calibrate(bamboo, TEXT, identity=IDENTITY, dial=DIAL, kinds=("oracle",))
    relu = _load(tmp_path, "llama-relu")
    with pytest.raises(UnsupportedError, match=r"blk\.0\.fc1\.weight"):
        calibrate(relu, TEXT, identity=IDENTITY, dial=DIAL, kinds=("mlp",))


def test_damaged_weights_are_named(bamboo: Model) -> None:
    norm = bamboo.weights.layers[1].ffn_input_norm
    nans = np.full(bamboo.config.hidden_size, np.nan, np.float32)
    damaged = replace(norm, weight=bamboo.ops.constant(nans))
    norms = {**bamboo.weights.layers[1].norms, "ffn_norm": damaged}
    layers = (bamboo.weights.layers[0], replace(bamboo.weights.layers[1], norms=norms))
    broken = replace(bamboo, weights=replace(bamboo.weights, layers=layers))
    with pytest.raises(NumericsError, match="layer 1 holds NaN"):
        calibrate(broken, TEXT, identity=IDENTITY, dial=DIAL, kinds=("sign",))


def test_damage_in_the_last_ffn_is_named(bamboo: Model) -> None:
    """No later layer sees what it makes."""
    last = bamboo.weights.layers[1]
    damaged = replace(last.ffn.up, bias=bamboo.ops.constant(np.full(48, np.inf, np.float32)))
    layers = (bamboo.weights.layers[0], replace(last, own_ffn=replace(last.ffn, up=damaged)))
    broken = replace(bamboo, weights=replace(bamboo.weights, layers=layers))
    with pytest.raises(NumericsError, match="FFN in layer 1 makes NaN or infinity"):
        calibrate(broken, TEXT, identity=IDENTITY, dial=DIAL, kinds=("sign",))


def test_a_layer_without_activity_is_measured_too(bamboo: Model) -> None:
    """All-negative gates: nothing fires, nothing can be missed."""
    first = bamboo.weights.layers[0]
    assert first.ffn.gate is not None
    silent = replace(first.ffn.gate, bias=bamboo.ops.constant(np.full(48, -1e6, np.float32)))
    layers = (replace(first, own_ffn=replace(first.ffn, gate=silent)), bamboo.weights.layers[1])
    quiet = replace(bamboo, weights=replace(bamboo.weights, layers=layers))
    found = calibrate(quiet, TEXT, identity=IDENTITY, dial=DIAL, kinds=("lowbit:2",))
    assert found.active_share(0) == 0
    assert found.layers[0].hot_share() == 0
    assert all(point.recall == 1 for point in found.layers[0].curves["lowbit:2"])
    assert CALIBRATION.from_json(CALIBRATION.to_json(found), "f").layers[0].choice.kind != ""


# Windows


def test_windows() -> None:
    cut = cut_windows("t", range(100, 1000), num_tokens=600, context_length=512, bos_id=None)
    assert cut.windows.shape == (2, 300)
    np.testing.assert_array_equal(cut.windows.reshape(-1), np.arange(100, 700))
    long = cut_windows("t", range(5000), num_tokens=4096, context_length=4096, bos_id=None)
    assert long.windows.shape == (8, 512)
    even = cut_windows("t", range(2000), num_tokens=4096, context_length=512, bos_id=None)
    assert even.windows.shape == (4, 500)
    least = cut_windows("t", range(33), num_tokens=33, context_length=16, bos_id=None)
    assert least.windows.shape == (2, 16)
    short = cut_windows("t", range(100, 170), num_tokens=1024, context_length=512, bos_id=1)
    assert short.windows.shape == (2, 35)
    assert list(short.windows[:, 0]) == [1, 1]
    small = cut_windows("t", range(400), num_tokens=1024, context_length=40, bos_id=None)
    assert small.windows.shape == (10, 40)


@pytest.mark.parametrize(
    ("length", "options"),
    [(31, {}), (0, {}), (500, {"context_length": 15}), (500, {"num_tokens": 31})],
)
def test_too_little_text(length: int, options: dict[str, int]) -> None:
    limits = {"num_tokens": 1024, "context_length": 512, **options}
    with pytest.raises(PromptError, match="at least 32 tokens"):
        cut_windows("t", range(length), bos_id=None, **limits)


def test_wide_models_are_measured_on_fewer_tokens() -> None:
    assert default_tokens(256, 1024) == 4096
    assert default_tokens(4096, 11008) == 1024


def test_the_bundled_text_is_plain_and_varied() -> None:
    text = bundled_text()
    assert 6000 < len(text) < 9000
    assert text.isascii()
    assert len(set(text.split())) > 600


# Choosing


def _point(error: float, time: float, recall: float = 0.99) -> CurvePoint:
    return CurvePoint((0.0,), 0.2, recall, 0.5, error, time, 1.2 * error)


def test_the_fastest_point_within_the_dial_is_taken() -> None:
    curve = (_point(0.0, 0.9), _point(0.008, 0.5), _point(0.0095, 0.4), _point(0.02, 0.2))
    found = point_for(curve, Dial(max_ffn_error=0.01))
    assert found is not None
    # 0.0095 is within the dial, but not with the distance that other text needs.
    assert found.time == 0.5
    assert point_for(curve[2:], Dial(max_ffn_error=0.01)) is None
    assert point_for(curve, Dial(recall=0.999)) is None
    assert point_for((_point(0.5, 0.3, 0.9992),), Dial(recall=0.999)) is not None


def test_kinds_that_are_not_faster_than_exact_are_not_chosen() -> None:
    slow, fast = (_point(0.0, 1.0),), (_point(0.0, 0.8), _point(0.1, 0.1))
    dial = Dial(max_ffn_error=0.01)
    assert choose({"sign": slow}, dial) == LayerChoice("exact")
    assert choose({"sign": slow, "lowbit:2": fast}, dial) == LayerChoice("lowbit:2", (0.0,))
    assert choose({}, dial).kind == "exact"


def test_a_wider_dial_is_never_slower(measured: Calibration) -> None:
    def time(error: float) -> float:
        chosen = choose_for_model(measured, Dial(max_ffn_error=error))
        points = [layer.chosen_point for layer in chosen.layers]
        return sum(1.0 if point is None else point.time for point in points)

    times = [time(error) for error in (0.001, 0.01, 0.05, 0.2, 1.0)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


def test_time_counts_bytes() -> None:
    gated = FFNBytes(num_neurons=100, decider=8, up=8, down=8, is_down_skippable=True)
    assert gated.exact_time(0.0, 0.0) == 800
    assert gated.exact_time(0.5, 0.25) == 100 * (8 + (4 + 2) / GATHER_SPEED)
    whole = replace(gated, is_down_skippable=False)
    assert whole.exact_time(0.0, 0.0) == 1600
    predictor = PredictorBytes(hidden_layer=50, stage_rows=(1.0, 2.0))
    everything = gated.predicted_time(predictor, (0.5, 0.1), 0.1, 0.1)
    assert everything == pytest.approx(50 + 100 * (1 + (0.5 * 2 + 0.1 * 24) / GATHER_SPEED))
    ungated = FFNBytes(100, 8, 0, 8, is_down_skippable=True)
    assert ungated.exact_time(0.5, 0.5) == 100 * (8 + 4 / GATHER_SPEED)


def test_bytes_are_those_of_the_model(bamboo: Model) -> None:
    num_bytes = FFNBytes.of(bamboo.ops, bamboo.weights.layers[0].ffn)
    assert num_bytes == FFNBytes(48, 128, 128, 128, is_down_skippable=True)
