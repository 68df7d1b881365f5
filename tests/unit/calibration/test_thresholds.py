"""Thresholds on activations: what is measured, stored, chosen, and run."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.calibration.calibrate import calibrate
from powerinfer.calibration.recall import RecallMeter
from powerinfer.calibration.text import CalibrationText
from powerinfer.errors import PromptError, UnsupportedError
from powerinfer.gguf import model_identity, open_gguf
from powerinfer.models import Model, load_model
from powerinfer.models.sparsity import with_thresholds
from powerinfer.ops.backend import as_backend
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.predictors import LayerChoice
from powerinfer.predictors.calibration import Calibration, Dial
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.predictors.choosing import choose_for_model, point_for
from tiny_models import TINY_MODELS, write_model

TEXT = CalibrationText("random", np.random.default_rng(0).integers(3, 280, (4, 24), np.int32))
NAMES = ("llama", "falcon", "qwen3moe", "granitemoe-shared")
"""Falcon's neurons are rows of down here: as columns nothing of them is left out."""


def _load(folder: Path, name: str) -> Model:
    recipe = replace(TINY_MODELS[name], is_down_transposed=name == "falcon")
    path = write_model(folder / f"{name}.gguf", recipe)
    return load_model(open_gguf(path), as_backend(ReferenceOps()))


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return _load(tmp_path_factory.mktemp("models"), request.param)


def _measure(model: Model, dial: Dial) -> Calibration:
    return calibrate(model, TEXT, identity="0123456789abcdef" * 4, dial=dial)


@pytest.fixture(scope="module")
def measured(model: Model) -> Calibration:
    return _measure(model, Dial(zeros=0.37))


def test_each_layer_makes_the_asked_share_zero(model: Model, measured: Calibration) -> None:
    for layer in measured.layers:
        point = layer.chosen_point
        assert point is not None
        assert layer.choice.kind == "threshold"
        assert 0.63 <= point.density <= 0.64
        assert point.time < 1
        densities = [each.density for each in layer.curves["threshold"]]
        errors = [each.ffn_error for each in layer.curves["threshold"]]
        assert densities == sorted(densities, reverse=True)
        assert errors[0] < errors[-1]
        assert all(each.ffn_error <= each.ffn_error_high for each in layer.curves["threshold"])


def test_the_error_is_that_of_the_model_that_runs(model: Model, measured: Calibration) -> None:
    """Run over the test half with these thresholds, a meter finds what the curve says."""
    thresholds = [layer.choice.thresholds[0] for layer in measured.layers]
    # One layer at a time: a cut layer changes what later ones see.
    for number, layer in enumerate(measured.layers):
        alone = [t if n == number else 0.0 for n, t in enumerate(thresholds)]
        cut = with_thresholds(model, alone, name="threshold")
        meter = RecallMeter(cut)
        cache = cut.new_cache(512)
        for row, ids in enumerate(TEXT.windows[1::2]):
            batch = cache.batch([(row, ids, 0)], [True])
            replace(cut, observer=meter).forward(batch, cache)
        point, found = layer.chosen_point, meter.layers[number]
        assert point is not None
        assert found.ffn_error == pytest.approx(point.ffn_error, rel=1e-3)
        assert found.predicted_share == pytest.approx(point.density, abs=2e-3)
        assert cut.layer_kinds[number] == "threshold"


def test_a_file_keeps_them(measured: Calibration, tmp_path: Path) -> None:
    path = CALIBRATION.write(tmp_path / "c.json", measured)
    assert '"zeros": 0.37' in path.read_text() or '"zeros":0.37' in path.read_text()
    found = CALIBRATION.read(path, measured.model_identity)
    assert found.dial == measured.dial
    assert found.choices == measured.choices
    assert [dict(layer.curves) for layer in found.layers] == [
        dict(layer.curves) for layer in measured.layers
    ]


def test_an_error_chooses_the_largest_threshold_within_it(measured: Calibration) -> None:
    for limit in (0.05, 0.2, 0.6):
        chosen = choose_for_model(measured, Dial(max_ffn_error=limit))
        for layer in chosen.layers:
            curve = layer.curves["threshold"]
            within = [each for each in curve if each.ffn_error_high <= limit]
            expected = min(within, key=lambda each: each.density, default=None)
            assert point_for(curve, chosen.dial) == expected
            assert layer.choice.thresholds == (expected.thresholds if expected else ())


def test_where_skipping_saves_nothing_nothing_is_lost(tmp_path: Path) -> None:
    """Without a gate, and with neurons as columns of down, all is read whatever is zero."""
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["falcon"])
    found = _measure(load_model(open_gguf(path), as_backend(ReferenceOps())), Dial(zeros=0.5))
    assert {layer.choice.kind for layer in found.layers} == {"exact"}


# The option


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])


def test_a_stored_calibration_runs_only_where_it_is_asked_for(path: Path) -> None:
    with LLM(path) as llm:
        dense = llm.logits([1, 40, 70])
        found = calibrate(
            llm.loaded.model,
            TEXT,
            identity=model_identity(llm.loaded.file),
            dial=Dial(zeros=0.5),
        )
    CALIBRATION.write(CALIBRATION.beside(path), found)
    with LLM(path) as llm:
        np.testing.assert_array_equal(llm.logits([1, 40, 70]), dense)
        assert llm.loaded.sparsity.summary == "off: every neuron is computed"
    with LLM(path, activation_threshold="auto") as llm:
        assert llm.loaded.sparsity.summary.startswith("lossy: neurons with |silu| below ")
        assert llm.loaded.sparsity.summary.endswith(" are skipped, calibrated for zeros 0.5")
        assert llm.loaded.model.layer_kinds == ("threshold",) * 2
        cut = llm.logits([1, 40, 70])
        (answer,) = llm.generate("the", SamplingParams(max_tokens=3, temperature=0))
        metrics = answer.metrics
        assert metrics.active_share is not None
        assert metrics.active_share < 0.8
    assert (cut != dense).any()
    with LLM(path, activation_threshold="auto", max_ffn_error=1e-6) as llm:
        # Nothing is within it: the layers stay whole, to the bit.
        assert llm.loaded.sparsity.summary.startswith("off: every neuron is computed, thresholds")
        assert llm.loaded.model.layer_kinds == ("off",) * 2
        np.testing.assert_array_equal(llm.logits([1, 40, 70]), dense)


def test_one_number_holds_for_all_layers(path: Path) -> None:
    with LLM(path, activation_threshold=0.1) as llm:
        ffns = [layer.ffn for layer in llm.loaded.model.weights.layers]
        assert [ffn.activation.threshold for ffn in ffns] == [0.1, 0.1]
        assert llm.loaded.model.sparsity == "threshold:0.1"
        assert llm.loaded.sparsity.summary == "lossy: neurons with |silu| below 0.1 are skipped"


def test_layers_stay_whole_where_a_calibration_says_so(path: Path) -> None:
    with LLM(path) as llm:
        identity = model_identity(llm.loaded.file)
        found = calibrate(llm.loaded.model, TEXT, identity=identity, dial=Dial(zeros=0.5))
    first, last = found.layers
    layers = (replace(first, choice=LayerChoice("exact")), last)
    CALIBRATION.write(CALIBRATION.beside(path), replace(found, layers=layers))
    with LLM(path, activation_threshold="auto") as llm:
        assert llm.loaded.model.layer_kinds == ("off", "threshold")
        assert "below 0 to " in llm.loaded.sparsity.summary


def test_without_a_calibration_a_brief_one_is_made_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with LLM(path, activation_threshold="auto") as llm:
            assert "calibrated for zeros 0.5" in llm.loaded.sparsity.summary
    assert caplog.text.count("this model has no calibration") == 1


@pytest.mark.parametrize("value", ["auto ", " 0.25", 0, 3, np.float32(0.5)])
def test_values(path: Path, value: float | str) -> None:
    with LLM(path, activation_threshold=value) as llm:
        assert llm.loaded.options.activation_threshold in ("auto", 0.25, 0, 3, 0.5)


@pytest.mark.parametrize("value", ["", "on", "nan", "inf", -0.1, True, "1e99"])
def test_bad_values(path: Path, value: float | str) -> None:
    with pytest.raises(PromptError, match="activation_threshold must be auto, or a number from 0"):
        LLM(path, activation_threshold=value)


def test_what_does_not_go_together(path: Path) -> None:
    with pytest.raises(PromptError, match="leave it or sparsity out"):
        LLM(path, activation_threshold=0.1, sparsity="off")
    with pytest.raises(PromptError, match="give activation_threshold='auto' with them"):
        LLM(path, activation_threshold=0.1, max_ffn_error=0.1)
    with pytest.raises(PromptError, match="activation_threshold runs on the CPU alone"):
        LLM(path, activation_threshold=0.1, device="cuda")
    relu = write_model(path.parent / "relu.gguf", TINY_MODELS["llama-relu"])
    with pytest.raises(UnsupportedError, match="thresholds on silu and gelu; this model runs relu"):
        LLM(relu, activation_threshold=0.1)
