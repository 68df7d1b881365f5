"""Where the frequencies of neurons come from, and that they are what the model computes."""

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import torch_files as tf
from powerinfer.calibration.calibrate import calibrate
from powerinfer.calibration.recall import RecallMeter
from powerinfer.calibration.stored import brief_calibration, brief_text
from powerinfer.gguf import GGUFFile, model_identity, open_gguf
from powerinfer.models import Model, load_model, uniform, with_predictors
from powerinfer.models.blocks import Stage
from powerinfer.offload import activation_profile
from powerinfer.offload import statistics as activation_statistics
from powerinfer.offload.statistics import frequency_of_density
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.placement.problem import ActivationStats
from powerinfer.predictors import LayerChoice
from powerinfer.predictors.calibration import Calibration, Dial
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.tokenizer import Tokenizer
from tiny_models import TINY_MODELS, write_model

pytestmark = pytest.mark.usefixtures("own_cache")

DIAL = Dial(max_ffn_error=0.05)


def _open(folder: Path, name: str = "llama-relu") -> tuple[Model, GGUFFile]:
    path = write_model(folder / f"{name}.gguf", TINY_MODELS[name])
    file = open_gguf(path)
    return load_model(file, ReferenceOps()), file


def _as(model: Model, kind: str) -> Model:
    return with_predictors(model, uniform(kind, model.config.num_layers), name=kind)


def _statistics(
    model: Model, file: GGUFFile, calibration: Calibration | None = None
) -> ActivationStats:
    tokenizer = Tokenizer.from_gguf(file)
    return activation_statistics.activation_statistics(
        model, file, tokenizer, calibration=calibration
    )


def _not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object) -> None:
        raise AssertionError("it was measured")

    monkeypatch.setattr(activation_statistics, "measure_profile", measured)


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_dense_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    _not_measured(monkeypatch)
    model, file = _open(tmp_path, name)
    if model.config.activation.is_sparse:
        model = replace(model, sparsity="off")
    stats = _statistics(model, file)
    assert (stats.frequency == 1).all()
    assert stats.frequency.shape == (model.config.num_layers, model.config.intermediate_size)
    assert stats.source == "every neuron runs"


@pytest.mark.parametrize("name", ["llama-relu", "bamboo", "falcon-powerinfer", "opt-powerinfer"])
@pytest.mark.parametrize("kind", ["exact", "mlp", "lowbit:2"])
def test_a_profile_counts_what_is_computed(tmp_path: Path, name: str, kind: str) -> None:
    model, file = _open(tmp_path, name)
    if kind == "mlp" and not model.weights.mlp:
        kind = "sign"
    model = _as(model, kind)
    progress: list[tuple[int, int]] = []
    tokenizer = Tokenizer.from_gguf(file)
    stats = activation_statistics.activation_statistics(
        model, file, tokenizer, lambda *state: progress.append(state)
    )
    num_layers = model.config.num_layers
    assert progress == [(number + 1, num_layers) for number in range(num_layers)]
    assert "brief profile" in stats.source
    windows = brief_text(model, tokenizer).windows
    assert stats.num_tokens == windows.size - len(windows)

    # The same text again, without the first token of each window, by what measures recall.
    meter = RecallMeter(model)
    later = np.ones(windows.shape, bool)
    later[:, 0] = False

    def observe(
        stage: Stage, number: int, x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    ) -> None:
        show(stage, number, np.ascontiguousarray(x[later.reshape(-1)]))

    cache = model.new_cache(windows.shape[0] * (windows.shape[1] + 64))
    batch = cache.batch(
        [(number, ids, 0) for number, ids in enumerate(windows)], [True] * len(windows)
    )
    show = meter.of_step(batch, None)
    model.forward(batch, cache, observe=observe)
    for number, layer in enumerate(meter.layers):
        wanted = layer.firing if kind == "exact" else layer.predicted
        counted = stats.frequency[number].sum(dtype=np.float64) * stats.num_tokens
        # A neuron may fire and still be zero where up is.
        assert counted == pytest.approx(wanted, abs=2)
        assert 0 < counted < layer.total


def test_a_profile_is_kept_for_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, file = _open(tmp_path)
    exact, sign = _as(model, "exact"), _as(model, "sign")
    first = _statistics(exact, file)
    other = _statistics(sign, file)
    assert not np.array_equal(first.frequency, other.frequency)
    _not_measured(monkeypatch)
    again = _statistics(exact, file)
    np.testing.assert_array_equal(again.frequency, first.frequency)
    assert again.num_tokens == first.num_tokens
    np.testing.assert_array_equal(_statistics(sign, file).frequency, other.frequency)


@pytest.mark.parametrize(
    "damage",
    [
        {"version": 2},
        {"tokens": 0},
        {"tokens": True},
        {"tokens": 1e400},
        {"text": None},
        {"computed": [[1, 2], [3]]},
        {"computed": [[0.5] * 48] * 2},
        {"computed": [[-1] * 48] * 2},
        {"computed": [[2**70] * 48] * 2},
        {"computed": [[1] * 48] * 3},
        {"computed": {"a": 1}},
        {},
        None,
    ],
)
def test_a_damaged_profile_is_measured_again(
    tmp_path: Path, damage: dict[str, object] | None
) -> None:
    model, file = _open(tmp_path)
    model = _as(model, "exact")
    first = _statistics(model, file)
    (path,) = (tmp_path / "cache").rglob("*.profile.json")
    whole = json.loads(path.read_text())
    text = "[" * 100_000 if damage is None else json.dumps({**whole, **damage})
    path.write_text(text if damage != {} else text[:-3])
    np.testing.assert_array_equal(_statistics(model, file).frequency, first.frequency)
    assert json.loads(path.read_text()) == whole
    assert activation_profile.find_profile(model, model_identity(file)) is not None


def _calibrated(model: Model, file: GGUFFile, kinds: Sequence[str]) -> Calibration:
    text = brief_text(model, Tokenizer.from_gguf(file))
    return calibrate(model, text, identity=model_identity(file), dial=DIAL, kinds=kinds)


def test_a_calibration_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _not_measured(monkeypatch)
    model, file = _open(tmp_path)
    calibration = _calibrated(model, file, ["sign", "lowbit:2"])
    CALIBRATION.write(CALIBRATION.beside(file.path), calibration)
    (tmp_path / "activation").mkdir()
    (tmp_path / "activation" / "activation_0.pt").write_bytes(tf.ARCHIVE)
    stats = _statistics(_as(model, "exact"), file)
    for number, layer in enumerate(calibration.layers):
        np.testing.assert_allclose(
            stats.frequency[number], layer.num_active / calibration.num_tokens, rtol=1e-6
        )
    assert stats.num_tokens == calibration.num_tokens
    assert "calibrated on the text in the package" in stats.source


def test_what_is_predicted_has_the_density_of_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _not_measured(monkeypatch)
    model, file = _open(tmp_path)
    measured = _calibrated(model, file, ["lowbit:2"])
    points = [layer.curves["lowbit:2"][3] for layer in measured.layers]
    choices = [LayerChoice("lowbit:2", point.thresholds) for point in points]
    calibration = measured.chosen(DIAL, choices)
    runs = with_predictors(model, choices, name="calibrated")
    stats = _statistics(runs, file, calibration)
    for number, (point, layer) in enumerate(zip(points, calibration.layers, strict=True)):
        assert stats.frequency[number].mean() == pytest.approx(point.density, abs=1e-4)
        order = np.argsort(layer.num_active, kind="stable")
        assert (np.diff(stats.frequency[number][order]) >= 0).all()


def test_kinds_that_were_not_calibrated_are_profiled(tmp_path: Path) -> None:
    model, file = _open(tmp_path)
    CALIBRATION.write(CALIBRATION.beside(file.path), _calibrated(model, file, ["lowbit:2"]))
    assert "calibrated" in _statistics(_as(model, "lowbit:2"), file).source
    assert "brief profile" in _statistics(_as(model, "sign"), file).source


def test_brief_calibrations_give_frequencies_for_their_own_choices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, file = _open(tmp_path)
    brief_calibration(model, file, Tokenizer.from_gguf(file), dial=DIAL)
    assert "brief profile" in _statistics(_as(model, "sign"), file).source
    _not_measured(monkeypatch)
    assert "calibrated" in _statistics(_as(model, "exact"), file).source


def test_an_activation_folder_comes_before_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    model, file = _open(tmp_path)
    folder = tmp_path / "activation"
    folder.mkdir()
    counts = np.arange(2 * 48, dtype="<f4").reshape(2, 48)
    for number, row in enumerate(counts):
        pickle = tf.tensor(tf.storage(num_elements=48), shape=tf.numbers(48))
        (folder / f"activation_{number}.pt").write_bytes(tf.archive(pickle, row.tobytes()))
    with monkeypatch.context() as patch:
        _not_measured(patch)
        stats = _statistics(_as(model, "exact"), file)
    np.testing.assert_allclose(stats.frequency, counts / 95)
    assert str(folder) in stats.source


def test_what_cannot_be_used_is_named_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, file = _open(tmp_path)
    CALIBRATION.beside(file.path).write_text("{}")
    (tmp_path / "activation").mkdir()
    (tmp_path / "activation" / "activation_0.pt").write_bytes(b"hello")
    with caplog.at_level(logging.WARNING):
        stats = _statistics(_as(model, "exact"), file)
    assert "brief profile" in stats.source
    assert "calibration.json" in caplog.text
    assert "activation_1.pt is missing" in caplog.text


def test_a_context_too_short_to_profile(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_model(tmp_path / "m.gguf", TINY_MODELS["llama-relu"])
    file = open_gguf(path)
    model = load_model(file, ReferenceOps(), context_length=8)
    stats = _statistics(_as(model, "exact"), file)
    assert (stats.frequency == 1).all()
    assert "activation frequencies are unknown" in caplog.text


@given(
    counts=hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 100)),
    density=st.floats(0.001, 1),
)
def test_densities_are_met_and_orders_kept(
    counts: np.ndarray[tuple[int], np.dtype[np.int64]], density: float
) -> None:
    found = frequency_of_density(counts, 100, density)
    assert found.dtype == np.float32
    assert found.min() >= 0
    assert found.max() <= 1
    assert found.mean(dtype=np.float64) == pytest.approx(density, abs=1e-5)
    order = np.argsort(counts, kind="stable")
    assert (np.diff(found[order]) >= 0).all()
