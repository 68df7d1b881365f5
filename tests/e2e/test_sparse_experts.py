"""Neurons skipped inside the chosen experts, as users of the command line and of `LLM` see it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import assert_error, invoke, run_json
from powerinfer import LLM, SamplingParams
from powerinfer.ops.backend import Backend
from powerinfer.predictors import ActiveIds, LayerSource, PredictorKind, outside, register
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.values import BoolArray, FloatArray
from tiny_models import TINY_EXPERTS, write_model
from tolerances import assert_close

WORDS = "the old fox saw a red hen run over the hill and sat down to think of his supper. "
GREEDY = ("-p", "the fox", "-n", "6", "--temp", "0", "--ignore-eos")
PROMPT = [1, 40, 70, 90, 100, 261, 262]
NAMES = (
    "mixtral-drelu-predictors",
    "mixtral-drelu-transposed",
    "mixtral-relu-biases",
    "smallthinker",
    "smallthinker-window",
    "smallthinker-predictors",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All models."""
    folder = tmp_path_factory.mktemp("models")
    for name, recipe in TINY_EXPERTS.items():
        write_model(folder / f"{name}.gguf", recipe)
    return folder


@pytest.fixture
def model(folder: Path, tmp_path: Path) -> Path:
    """One with predictors, in a folder of its own: calibrations are stored beside it."""
    return Path(shutil.copy(folder / "mixtral-drelu-predictors.gguf", tmp_path / "m.gguf"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 8)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _logits(path: Path, sparsity: str | None) -> FloatArray:
    """Of a prompt, and of a token after it."""
    with LLM(path, sparsity=sparsity) as llm:
        sequence = llm.new_sequence()
        return np.concatenate(
            [sequence.extend_scored(PROMPT, len(PROMPT)), sequence.extend([7])[np.newaxis]]
        )


@pytest.mark.parametrize("name", NAMES)
def test_exact_is_the_default_and_loses_nothing(folder: Path, name: str) -> None:
    path = folder / f"{name}.gguf"
    np.testing.assert_array_equal(_logits(path, None), _logits(path, "exact"))
    assert_close(_logits(path, None), _logits(path, "off"), "exact sparse")


def test_experts_of_dense_activations_skip_nothing(folder: Path) -> None:
    path = folder / "mixtral.gguf"
    assert run_json("run", "-m", path, *GREEDY)["sparsity"] == "off"
    assert_error(invoke("run", "-m", path, *GREEDY, "--sparsity", "sign"), "ReLU family", "silu")
    named = run_json("run", "-m", path, *GREEDY, "--activation", "drelu")
    assert named["sparsity"] == "exact"
    assert 0 < named["active_share"] < 0.5


def test_shares_are_of_the_chosen_experts(folder: Path) -> None:
    path = folder / "mixtral-drelu-transposed.gguf"
    shown = invoke("run", "-m", path, *GREEDY)
    assert "skipped inside the chosen experts, without loss" in shown.stderr.splitlines()[0]
    assert "; active neurons of the chosen experts " in shown.stderr
    # Of two random signs each is positive for half of the neurons.
    assert 0.1 < run_json("run", "-m", path, *GREEDY)["active_share"] < 0.4
    off = run_json("run", "-m", path, *GREEDY, "--sparsity", "off")
    assert off["active_share"] == 1
    predicted = run_json("run", "-m", path, *GREEDY, "--sparsity", "lowbit:4", "--measure-recall")
    assert 0.1 < predicted["active_share"] <= predicted["predicted_share"] < 1
    assert all(0.9 < recall <= 1 for recall in predicted["recall"])
    with LLM(path) as llm:
        metrics = llm.generate([PROMPT], SamplingParams(max_tokens=4, ignore_eos=True))[0].metrics
    assert metrics.has_experts
    assert metrics.total_neurons == 3 * 2 * 3 * 48
    recall = invoke("run", "-m", path, *GREEDY, "--measure-recall").stderr
    assert "share of the neurons of the chosen experts that are not zero" in " ".join(
        recall.split()
    )


def test_calibrate_then_run(model: Path, text: Path) -> None:
    common = ("calibrate", "-m", model, "-f", text, "--max-ffn-error", "0.2")
    kinds = ("--kinds", "lowbit:2,lowbit:4,mlp:q8_0")
    report = run_json(*common, *kinds)
    stored = CALIBRATION.beside(model)
    assert json.loads(stored.read_text())["experts"] == {"count": 4, "used": 2}
    for layer in report["layers"]:
        assert layer["kind"] in ("lowbit:2", "lowbit:4", "mlp:q8_0")
        assert layer["ffn_error"] <= 0.2
        assert 0.1 < layer["active_share"] < 0.4
    ran = run_json("run", "-m", model, *GREEDY, "--measure-recall")
    assert ran["sparsity"] == "calibrated"
    assert ran["layer_kinds"] == [layer["kind"] for layer in report["layers"]]
    for layer, recall, error in zip(report["layers"], ran["recall"], ran["ffn_error"], strict=True):
        assert recall == pytest.approx(layer["recall"], abs=0.15)
        assert error == pytest.approx(layer["ffn_error"], abs=0.1)
    shown = invoke(*common, "--kinds", "lowbit:2")
    assert "a token uses 2 of 4 experts: shares count the neurons of those" in shown.stdout
    exported = model.with_name("c.npz")
    run_json(*common, *kinds, "--export", exported)
    with np.load(exported) as tables:
        frequency = tables["neurons.frequency"].reshape(2, 4 * 48)
        # A token is given to half of the experts.
        np.testing.assert_allclose(2 * frequency.mean(axis=1), tables["layers.active_share"])


def test_a_calibration_of_other_experts_is_refused(folder: Path, model: Path, text: Path) -> None:
    run_json("calibrate", "-m", model, "-f", text, "--kinds", "sign")
    stored = CALIBRATION.beside(model)
    changed = json.loads(stored.read_text())
    changed["experts"]["used"] = 3
    stored.write_text(json.dumps(changed))
    assert_error(invoke("run", "-m", model, *GREEDY), "3 of 4 experts per token, the model 2 of 4")
    changed["experts"]["used"] = 5
    stored.write_text(json.dumps(changed))
    assert_error(invoke("run", "-m", model, *GREEDY), "experts.used")


def test_auto_measures_and_keeps_the_error(model: Path) -> None:
    auto = ("run", "-m", model, *GREEDY, "--sparsity", "auto")
    for error in (0.02, 0.3):
        report = run_json(*auto, "--max-ffn-error", str(error), "--measure-recall")
        assert report["sparsity"] == "calibrated"
        # The prompt is no text of the kind that was measured.
        assert all(found <= 1.5 * error for found in report["ffn_error"])
    assert set(report["layer_kinds"]) != {"exact"}
    recalled = run_json(*auto, "--recall", "0.9", "--measure-recall")
    assert all(recall > 0.8 for recall in recalled["recall"])


@pytest.mark.parametrize("kind", ["mlp", "mlp:q8_0", "sign+lowbit:2"])
def test_a_dial_sets_one_kind(model: Path, kind: str) -> None:
    report = run_json(
        "run", "-m", model, *GREEDY, "--sparsity", kind, "--recall", "0.95", "--measure-recall"
    )
    assert report["layer_kinds"] == [kind] * 2
    assert all(recall > 0.85 for recall in report["recall"])


def test_missing_predictors_of_experts_are_named(folder: Path) -> None:
    result = invoke("run", "-m", folder / "mixtral-relu-biases.gguf", *GREEDY, "--sparsity", "mlp")
    assert_error(result, "blk.0.fc1.weight and fc2_exps.weight")


def test_kinds_from_outside_list_neurons_of_all_experts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of experts that a token is not given to are ignored."""
    monkeypatch.setattr(outside, "_registered", {})

    def listed(*, is_chosen_only: bool) -> object:
        def make(ops: Backend, source: LayerSource, _variant: str) -> object:
            def active_ids(x: FloatArray, is_prompt: BoolArray | None) -> ActiveIds:
                experts, _ = ops.route(x, source.ffn, is_prompt)
                mask = np.zeros((len(x), 4, 48), bool)
                mask[:, :, ::2] = True
                if is_chosen_only:
                    for token, chosen in enumerate(experts):
                        mask[token, np.setdiff1d(range(4), chosen)] = False
                return ActiveIds.of_mask(mask.reshape(len(x), -1))

            return active_ids

        return make

    path = folder / "mixtral-relu-biases.gguf"
    for name, is_chosen_only in (("chosen", True), ("all", False)):
        make = listed(is_chosen_only=is_chosen_only)
        register(PredictorKind(name=name, summary="a test", active_ids=make))  # type: ignore[arg-type]
    found = _logits(path, "all")
    np.testing.assert_array_equal(found, _logits(path, "chosen"))
    assert np.abs(found - _logits(path, "exact")).max() > 1e-3
    report = run_json("run", "-m", path, *GREEDY, "--sparsity", "all", "--measure-recall")
    assert report["predicted_share"] == 0.5
    assert all(0.3 < recall < 0.7 for recall in report["recall"])
