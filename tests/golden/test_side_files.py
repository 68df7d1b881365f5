"""Side files as they are written, byte for byte: they are found by their names and read."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from powerinfer.calibration.files import find_brief_calibration, find_calibration
from powerinfer.gguf import GGUFFile, model_identity, open_gguf
from powerinfer.loading.reading_speeds import PREFETCH_SETTINGS
from powerinfer.models import load_model, uniform, with_predictors
from powerinfer.offload import activation_profile, device_speeds
from powerinfer.ops.cpu.prefetch_settings import PrefetchSettings
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.placement.cost_model import DeviceSpeed
from powerinfer.placement.plan import PLAN
from powerinfer.predictors.calibration_json import CALIBRATION
from tiny_models import TINY_MODELS, write_model

FOLDER = Path(__file__).parent / "side_files"
IDENTITY = "0123456789abcdef" * 4
CPU = "a CPU, 4 threads, avx2 kernels, f16 weights"
GPU = f"a GPU with {CPU}"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "powerinfer"


def _put(source: str, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(FOLDER / source, target)


def test_a_plan(tmp_path: Path) -> None:
    path = PLAN.beside(tmp_path / "model.gguf")
    _put("model.gguf.plan.json", path)
    plan = PLAN.read(path, IDENTITY)
    assert path.name == "model.gguf.plan.json"
    assert (plan.solver, plan.budget_bytes, plan.num_neurons) == ("latency", 1 << 30, 10)
    assert plan.predicted_s == 0.0123
    assert plan.has_output
    assert [layer.hot.tolist() for layer in plan.layers] == [[0, 3, 9], [3, 9], []]
    assert [layer.has_attention for layer in plan.layers] == [True, True, False]
    # So the version before reads what this one writes.
    assert PLAN.write(tmp_path / "again", plan).read_bytes() == path.read_bytes()


def test_a_calibration(tmp_path: Path) -> None:
    path = CALIBRATION.beside(tmp_path / "model.gguf")
    _put("model.gguf.calibration.json", path)
    calibration = CALIBRATION.read(path, IDENTITY)
    assert path.name == "model.gguf.calibration.json"
    assert calibration.activation == "relu"
    assert calibration.num_tokens == 9
    first, second = calibration.layers
    assert first.num_active.tolist() == [0, 9, 3]
    assert first.mean.tolist() == [0.5, -1.25]
    assert first.curves["sign+lowbit:2"][0].recall == 0.995
    assert (first.choice.kind, first.choice.thresholds) == ("sign+lowbit:2", (-1.5, 0.25))
    assert second.choice.kind == "exact"
    assert CALIBRATION.write(tmp_path / "again", calibration).read_bytes() == path.read_bytes()


def _model(tmp_path: Path) -> GGUFFile:
    return open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["llama-relu"]))


def test_a_calibration_and_a_brief_one_in_the_cache(tmp_path: Path, cache: Path) -> None:
    file = _model(tmp_path)
    identity = model_identity(file)
    for suffix, find in (
        ("calibration", find_calibration),
        ("brief.calibration", find_brief_calibration),
    ):
        source = f"{IDENTITY}.{suffix}" if "brief" in suffix else f"model.gguf.{suffix}"
        text = (FOLDER / f"{source}.json").read_text().replace(IDENTITY, identity)
        path = cache / "calibrations" / f"{identity}.{suffix}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        found = find(file)
        assert found is not None
        assert found.model_identity == identity


def test_a_profile(tmp_path: Path, cache: Path) -> None:
    # It was measured of a model of two layers of three neurons each.
    model = load_model(_model(tmp_path), ReferenceOps())
    kinds = uniform("exact", 2)[:1] + uniform("sign", 2)[:1]
    model = with_predictors(model, kinds, name="mixed")
    model = replace(model, config=replace(model.config, intermediate_size=3))
    name = f"{IDENTITY}.f1525bc1d63d5004.profile.json"
    _put(name, cache / "profiles" / name)
    profile = activation_profile.find_profile(model, IDENTITY)
    assert profile is not None
    assert profile.num_computed.tolist() == [[0, 9, 3], [1, 2, 9]]
    assert (profile.num_tokens, profile.text_name) == (9, "the text in the package")
    written = cache / "profiles" / name
    before = written.read_bytes()
    activation_profile.save_profile(model, IDENTITY, profile)
    assert written.read_bytes() == before
    # Another predictor has a file of its own.
    assert activation_profile.find_profile(replace(model, mlp_threshold=0.25), IDENTITY) is None


def test_speeds_of_both_sides(cache: Path) -> None:
    cpu_name = "cpu-cc6f0093e91745ba.json"
    _put(cpu_name, cache / "speeds" / cpu_name)
    cpu = device_speeds.CPU_SPEEDS.recall(CPU)
    assert cpu == DeviceSpeed(1.25e10, 5e9, 2e-6)
    gpu_name = "gpu-f76b4b38b3c46f46.json"
    _put(gpu_name, cache / "speeds" / gpu_name)
    gpu = device_speeds.GPU_SPEEDS.recall(GPU)
    assert gpu is not None
    assert gpu.gpu == DeviceSpeed(4e12, 3e12, 1e-5)
    assert (gpu.handoff_s, gpu.transfer_bytes_per_s, gpu.run_s) == (2e-5, 5e10, 6e-5)
    # So what this version writes is what it reads, but for spaces.
    (cache / "speeds" / gpu_name).unlink()
    device_speeds.GPU_SPEEDS.keep(GPU, gpu)
    written = json.loads((cache / "speeds" / gpu_name).read_text())
    assert written == json.loads((FOLDER / gpu_name).read_text())


def test_a_way_of_reading(cache: Path) -> None:
    name = "reads-cc6f0093e91745ba.json"
    _put(name, cache / "speeds" / name)
    settings = PREFETCH_SETTINGS.recall(CPU)
    assert settings == PrefetchSettings(
        ahead=4096, chunk_bytes=1 << 20, gather_ahead=8192, add_ahead=4096
    )
    (cache / "speeds" / name).unlink()
    PREFETCH_SETTINGS.keep(CPU, settings)
    written = json.loads((cache / "speeds" / name).read_text())
    assert written == json.loads((FOLDER / name).read_text())
