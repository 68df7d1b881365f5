"""`powerinfer calibrate` as a user calls it, and what other commands do with the result."""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import assert_error, invoke, run_json
from powerinfer import LLM
from powerinfer.calibration.files import find_calibration
from powerinfer.errors import CalibrationError
from powerinfer.gguf import keys, model_identity, open_gguf
from powerinfer.predictors.calibration import Calibration
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.sidecar import Sidecar
from tiny_models import TINY_MODELS, TinyModel, write_model

WORDS = "the old fox saw a red hen run over the hill and sat down to think of his supper. "
GREEDY = ("-p", "the fox", "-n", "6", "--temp", "0", "--ignore-eos")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(WORDS * 8)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    recipe = replace(TINY_MODELS["llama"], activation="relu", is_down_transposed=True)
    return write_model(tmp_path / "relu.gguf", recipe)


@pytest.fixture
def powerinfer_model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "bamboo.gguf", TINY_MODELS["bamboo"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "powerinfer" / "calibrations"


def _calibrate(model: Path, text: Path, *more: str | Path) -> dict[str, Any]:
    # A tiny model's sign copies are no smaller in time than its f32 rows are; errors are large.
    common = ("calibrate", "-m", model, "-f", text, "--kinds", "lowbit:2,lowbit:4")
    return run_json(*common, "--max-ffn-error", "0.1", *more)


def test_calibrate_then_run(model: Path, text: Path) -> None:
    report = _calibrate(model, text)
    path = CALIBRATION.beside(model)
    assert path == model.with_name("relu.gguf.calibration.json")
    assert report["path"] == str(path)
    assert path.exists()
    assert [layer["layer"] for layer in report["layers"]] == [0, 1]
    assert report["max_ffn_error"] == 0.1
    assert report["recall"] is None
    assert report["text"] == "text.txt"
    assert 0 < report["time"] < 1
    for layer in report["layers"]:
        assert layer["kind"].startswith("lowbit:")
        assert layer["ffn_error"] <= 0.1
        assert 0 < layer["active_share"] < layer["hot_share"] < 1
    ran = invoke("run", "-m", model, *GREEDY)
    assert ran.exit_code == 0, ran.output
    assert "sparsity calibrated for FFN error 0.1: 2 layers lowbit:" in ran.stderr
    assert run_json("run", "-m", model, *GREEDY)["sparsity"] == "calibrated"
    assert run_json("run", "-m", model, *GREEDY, "--sparsity", "exact")["sparsity"] == "exact"
    assert run_json("run", "-m", model, *GREEDY, "--sparsity", "off")["sparsity"] == "off"


def test_the_table(model: Path, text: Path) -> None:
    shown = invoke("calibrate", "-m", model, "-f", text, "--kinds", "lowbit:2", "--recall", "0.9")
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    head = ["layer", "fire", "hot", "80", "%", "kind", "threshold", "density", "recall"]
    assert lines[0].split()[: len(head)] == head
    assert [line.split()[0] for line in lines[1:3]] == ["0", "1"]
    assert "tokens of text.txt, chosen for recall 0.9" in shown.stdout
    assert f"stored in {CALIBRATION.beside(model)}" in shown.stdout


def test_the_report_lists_every_kind_not_only_the_chosen_one(model: Path, text: Path) -> None:
    report = _calibrate(model, text)
    by_name = {kind["kind"]: kind for kind in report["kinds"]}
    assert list(by_name) == ["lowbit:2", "lowbit:4"]
    for kind in by_name.values():
        assert 0 < kind["ffn_error"] <= 0.1
        assert 0 < kind["precision"] <= 1
        assert 0 < kind["recall"] <= 1
        assert kind["layers"] == 2
    layers = {layer["kind"]: layer for layer in report["layers"]}
    if len(layers) == 1:
        (name,) = layers
        mean = sum(layer["recall"] for layer in report["layers"]) / 2
        assert by_name[name]["recall"] == pytest.approx(mean)
    tight = ("--kinds", "lowbit:2,sign", "--max-ffn-error", "1e-12")
    shown = invoke("calibrate", "-m", model, "-f", text, *tight).stdout
    rows = [line.split() for line in shown.splitlines()]
    head = ["kind", "layers", "density", "recall", "precision", "error", "time"]
    assert head in rows
    assert [row[0] for row in rows[rows.index(head) + 1 :][:2]] == ["lowbit:2", "sign"]


def test_a_dial_chooses_again(model: Path, text: Path) -> None:
    _calibrate(model, text)
    with LLM(model, max_ffn_error=1e-9) as careful, LLM(model, max_ffn_error=0.9) as bold:
        assert str(careful.loaded.sparsity.calibration) != str(bold.loaded.sparsity.calibration)
        assert "calibrated for FFN error 1e-09" in careful.loaded.sparsity.summary
        points = [layer.chosen_point for layer in _layers(careful)]
        assert all(point is None or point.ffn_error == 0 for point in points)
        wide = [layer.chosen_point for layer in _layers(bold)]
        assert all(point is not None and point.ffn_error > 0.1 for point in wide)


def _layers(llm: LLM) -> Any:
    assert llm.loaded.sparsity.calibration is not None
    return llm.loaded.sparsity.calibration.layers


def test_a_kind_takes_the_calibrated_thresholds(model: Path, text: Path) -> None:
    with LLM(model, sparsity="lowbit:2") as llm:
        assert "default thresholds, not calibrated ones" in llm.loaded.sparsity.summary
    _calibrate(model, text)
    with LLM(model, sparsity="lowbit:2") as llm:
        assert llm.loaded.sparsity.summary == "lowbit:2: calibrated for FFN error 0.1"
        assert llm.loaded.model.layer_kinds == ("lowbit:2",) * 2
    with LLM(model, sparsity="sign") as llm:
        assert llm.loaded.sparsity.summary == "sign: default thresholds, not calibrated ones"
    with LLM(model, sparsity="oracle") as llm:
        assert llm.loaded.model.layer_kinds == ("oracle",) * 2


def test_powerinfer_files(
    powerinfer_model: Path, text: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(powerinfer_model) as llm:
        assert llm.loaded.model.layer_kinds == ("mlp",) * 2
        assert llm.loaded.sparsity.summary == "mlp: the file's own predictors and threshold"
    result = invoke("run", "-m", powerinfer_model, *GREEDY, "--max-ffn-error", "0.1")
    assert "has no calibration for these settings; measuring 512 tokens" in caplog.text
    assert "sparsity calibrated for FFN error 0.1" in result.stderr
    _calibrate(powerinfer_model, text)
    with LLM(powerinfer_model) as llm:
        assert llm.loaded.model.sparsity == "calibrated"
    with LLM(powerinfer_model, sparsity="mlp") as llm:
        assert llm.loaded.sparsity.summary == "mlp: the file's own predictors and threshold"


def test_auto_measures_once(model: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = invoke("run", "-m", model, *GREEDY, "--sparsity", "auto")
    assert first.exit_code == 0, first.output
    assert "this model has no calibration" in caplog.text
    assert "tokens of the text in the package" in first.stderr
    stored = list(cache.iterdir())
    assert [path.name for path in stored] == [
        f"{model_identity(open_gguf(model))}.brief.calibration.json"
    ]
    caplog.clear()
    second = invoke("run", "-m", model, *GREEDY, "--sparsity", "auto")
    assert not caplog.records
    assert second.stdout == first.stdout
    # What a run in passing measured changes no default, and damage to it is repaired.
    assert run_json("run", "-m", model, *GREEDY)["sparsity"] == "exact"
    stored[0].write_text("{}")
    invoke("run", "-m", model, *GREEDY, "--sparsity", "auto")
    assert "this model has no calibration" in caplog.text
    assert not CALIBRATION.beside(model).exists()


def test_calibrations_of_others_are_refused(
    model: Path, powerinfer_model: Path, text: Path
) -> None:
    _calibrate(model, text)
    shutil.move(CALIBRATION.beside(model), CALIBRATION.beside(powerinfer_model))
    for flags in ([], ["--sparsity", "auto"], ["--sparsity", "lowbit:2"]):
        result = invoke("run", "-m", powerinfer_model, *GREEDY, *flags)
        assert_error(result, "bamboo.gguf.calibration.json", "made for another model", "remove it")
    for kind in ("exact", "off"):
        result = invoke("run", "-m", powerinfer_model, *GREEDY, "--sparsity", kind)
        assert result.exit_code == 0, result.output
    _calibrate(powerinfer_model, text)
    assert invoke("run", "-m", powerinfer_model, *GREEDY).exit_code == 0


def test_damage_and_other_activations_are_one_line(model: Path, text: Path) -> None:
    _calibrate(model, text)
    assert_error(
        invoke("run", "-m", model, *GREEDY, "--activation", "fatrelu:0.1"),
        "made with the activation relu, this run uses fatrelu:0.1",
    )
    value = json.loads(CALIBRATION.beside(model).read_text())
    del value["layers"][1]
    CALIBRATION.beside(model).write_text(json.dumps(value))
    assert_error(invoke("run", "-m", model, *GREEDY), "has 1 layers, the model 2")
    CALIBRATION.beside(model).write_bytes(b"\xff\xfe")
    assert_error(invoke("run", "-m", model, *GREEDY), "relu.gguf.calibration.json", "not JSON")
    CALIBRATION.beside(model).unlink()
    CALIBRATION.beside(model).mkdir()
    assert_error(invoke("run", "-m", model, *GREEDY), "cannot be read")


def test_inside(model: Path, text: Path, tmp_path: Path) -> None:
    before = open_gguf(model)
    copy = tmp_path / "copy.gguf"
    assert _calibrate(model, text, "--write", "-o", copy)["path"] == str(copy)
    assert keys.CALIBRATION not in open_gguf(model).metadata
    assert _calibrate(model, text, "--write")["path"] == str(model)
    for path in (model, copy):
        after = open_gguf(path)
        assert not CALIBRATION.beside(path).exists()
        assert model_identity(after) == model_identity(before)
        assert list(after.tensors) == list(before.tensors)
        assert all(
            (after.tensors[name].data == tensor.data).all()
            for name, tensor in before.tensors.items()
        )
        assert set(after.metadata) - set(before.metadata) == {keys.CALIBRATION}
        assert run_json("run", "-m", path, *GREEDY)["sparsity"] == "calibrated"
    # Again: the key is replaced, and the identity stays.
    _calibrate(model, text, "--write", "--tokens", "64")
    assert model_identity(open_gguf(model)) == model_identity(before)
    assert run_json("run", "-m", model, *GREEDY)["sparsity"] == "calibrated"


def test_inside_replaces_what_is_beside(model: Path, text: Path) -> None:
    _calibrate(model, text, "--kinds", "sign")
    assert CALIBRATION.beside(model).exists()
    _calibrate(model, text, "--kinds", "lowbit:3", "--write")
    assert not CALIBRATION.beside(model).exists()
    found = find_calibration(open_gguf(model))
    assert found is not None
    assert list(found.layers[0].curves) == ["lowbit:3"]


def test_inside_keeps_magic_and_alignment(powerinfer_model: Path, text: Path) -> None:
    _calibrate(powerinfer_model, text, "--write")
    assert open_gguf(powerinfer_model).magic == "PWRI"


def test_a_folder_that_is_not_writable(
    model: Path, text: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Sidecar.write

    def refused(self: Sidecar[Calibration], path: Path, calibration: Calibration) -> Path:
        if path.parent == model.parent:
            raise CalibrationError(f"{path}: cannot write: read-only")
        return write(self, path, calibration)

    monkeypatch.setattr(Sidecar, "write", refused)
    with pytest.MonkeyPatch.context() as inner:
        inner.setattr("os.access", lambda _path, mode: mode != os.W_OK)
        report = _calibrate(model, text)
    assert Path(report["path"]).parent == cache
    assert run_json("run", "-m", model, *GREEDY)["sparsity"] == "calibrated"
    assert_error(invoke("calibrate", "-m", model, "-f", text, "--kinds", "sign"), "cannot write")
    # What is inside would be taken instead of what is in the cache.
    monkeypatch.setattr(Sidecar, "write", write)
    _calibrate(model, text, "--write")
    monkeypatch.setattr(Sidecar, "write", refused)
    monkeypatch.setattr("os.access", lambda _path, mode: mode != os.W_OK)
    assert_error(invoke("calibrate", "-m", model, "-f", text, "--kinds", "sign"), "cannot write")


def test_output(model: Path, text: Path, tmp_path: Path) -> None:
    report = _calibrate(model, text, "-o", tmp_path / "new" / "c.json")
    assert Path(report["path"]).exists()
    assert not CALIBRATION.beside(model).exists()
    assert run_json("run", "-m", model, *GREEDY)["sparsity"] == "exact"


@pytest.mark.slow
def test_plots(model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = _calibrate(model, text, "--plot", tmp_path / "plots")
    names = ["activation-frequency", "sparsity-per-layer", "error-by-density", "recall-by-density"]
    wanted = [f"{name}.{ending}" for name in names for ending in ("png", "svg")]
    assert [Path(path).name for path in report["plots"]] == wanted
    for path in report["plots"]:
        start = Path(path).read_bytes()[:5]
        assert start in (b"\x89PNG\r", b"<?xml")
    content = Path(report["plots"][1]).read_text()
    assert "<!-- relu.gguf · 2 layers of 48 neurons · " in content
    assert "tokens of text.txt" in content
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    again = invoke("calibrate", "-m", model, "-f", text, "--plot", tmp_path / "plots")
    assert_error(again, "plots need matplotlib", "scripts/setup plot", "leave --plot out")


def test_a_broken_matplotlib_is_found_before_anything_is_measured(
    model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is found, but a part of it cannot be imported.
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_svg", None)
    output = tmp_path / "c.json"
    result = invoke(
        "calibrate", "-m", model, "-f", text, "-o", output, "--plot", tmp_path / "plots"
    )
    assert_error(result, "plots need matplotlib, which cannot be imported: ", "leave --plot out")
    assert not output.exists()


def test_ctrl_c_leaves_nothing(model: Path, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("powerinfer.calibration.calibrate.measure_curve", interrupted)
    before = sorted(model.parent.iterdir())
    result = invoke("calibrate", "-m", model, "-f", text)
    assert result.exit_code == 130
    assert "Traceback" not in result.output
    assert sorted(model.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", "absent.txt"], "absent.txt"),
        (["-f", "short.txt"], "at least 32 tokens"),
        (["--max-ffn-error", "0"], "--max-ffn-error"),
        (["--max-ffn-error", "nan"], "--max-ffn-error"),
        (["--recall", "1.5"], "--recall"),
        (["--recall", "0.9", "--max-ffn-error", "0.1"], "not both"),
        (["--tokens", "3"], "--tokens"),
        (["--kinds", "magic"], "magic"),
        (["--kinds", ","], "at least one kind"),
        (["--kinds", "exact"], "has no threshold"),
        (["--kinds", "mlp"], "fc1.weight"),
        (["--activation", "silu"], "ReLU family"),
        (["--activation", "rleu"], "Did you mean 'relu'"),
    ],
)
def test_mistakes(
    model: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    Path("short.txt").write_text("too short")
    assert_error(invoke("calibrate", "-m", model, *arguments), message)
    assert not CALIBRATION.beside(model).exists()


def test_models_that_are_never_zero(tmp_path: Path) -> None:
    silu = write_model(tmp_path / "silu.gguf", TinyModel("llama"))
    assert_error(invoke("calibrate", "-m", silu), "ReLU family", "--activation")
    for kind in ("auto", "lowbit:2", "exact"):
        ran = invoke("run", "-m", silu, *GREEDY, "--sparsity", kind)
        assert_error(ran, f"sparsity '{kind}' needs an activation of the ReLU family")


def test_the_packaged_model_is_calibrated_in_the_cache(text: Path, cache: Path) -> None:
    report = run_json("calibrate", "-f", text, "--kinds", "lowbit:3", "--tokens", "128")
    assert Path(report["path"]).parent == cache
    assert run_json("run", *GREEDY)["sparsity"] == "calibrated"
    assert_error(
        invoke("calibrate", "-f", text, "--kinds", "sign", "--tokens", "64", "--write"),
        "the model in the package is not rewritten",
    )
