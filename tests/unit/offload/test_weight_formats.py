"""What formats take on a GPU, and what commands say of those that grow there."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import invoke, run_json
from powerinfer import LLM
from powerinfer.cli.report.placement import print_placement
from powerinfer.offload import device_speeds
from powerinfer.offload.choose_plan import choose_plan
from powerinfer.offload.devices import Device
from powerinfer.offload.problem import placement_task
from powerinfer.offload.weight_formats import weight_formats
from powerinfer.options.options import engine_options
from powerinfer.placement.cost_model import DeviceSpeed
from tiny_models import TINY_MODELS, wide, write_model

# Bytes of a weight, in the file and on the GPU.
BYTES = {
    # In rows of a single superblock four f16 follow the scales, of which two are padding.
    "q4_k": (144 / 256, 152 / 256),
    "q6_k": (210 / 256, 216 / 256),
    "mxfp4": (17 / 32, 2.0),
    "q4_0": (18 / 32, 18 / 32),
    "q8_0": (34 / 32, 34 / 32),
    "f16": (2.0, 2.0),
}


def _model(folder: Path, format_name: str, name: str = "llama-drelu-transposed") -> Path:
    path = folder / f"{name}-{format_name}.gguf"
    return write_model(path, wide(TINY_MODELS[name], format_name))


@pytest.mark.parametrize("name", BYTES)
def test_what_a_weight_takes(tmp_path: Path, name: str) -> None:
    with LLM(_model(tmp_path, name), device="cpu") as llm:
        (found,) = weight_formats(llm.loaded.model)
        assert found.name == name
        assert (found.file_bytes_per_weight, found.device_bytes_per_weight) == BYTES[name]
        config = llm.loaded.model.config
        assert found.num_weights > 3 * config.num_layers * (
            config.hidden_size * config.intermediate_size
        )
        assert bool(found.num_decoded) == (name == "mxfp4")


def test_a_down_that_is_stored_by_columns_becomes_f16(tmp_path: Path) -> None:
    """Its blocks lie across the neurons."""
    with LLM(_model(tmp_path, "q4_0", "llama-relu"), device="cpu") as llm:
        (found,) = weight_formats(llm.loaded.model)
        config = llm.loaded.model.config
    down = config.num_layers * config.hidden_size * config.intermediate_size
    wanted = (found.num_weights - down) * 18 // 32 + down * 2
    assert found.device_bytes == wanted
    assert found.num_decoded


def test_formats_are_listed_by_their_bytes(tmp_path: Path) -> None:
    mixed = replace(wide(TINY_MODELS["llama-relu"], "q4_k"), other_formats={"output": "q6_k"})
    with LLM(write_model(tmp_path / "mixed.gguf", mixed), device="cpu") as llm:
        found = weight_formats(llm.loaded.model)
    assert [each.name for each in found] == ["q4_k", "q6_k"]


@pytest.fixture
def slow_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = DeviceSpeed(1e8, 1e8, 1e-3)
    monkeypatch.setattr(device_speeds, "_cpu", lambda *_: slow)


@pytest.mark.usefixtures("slow_cpu")
def test_a_plan_says_what_formats_cost(tmp_path: Path) -> None:
    model = _model(tmp_path, "mxfp4")
    shown = invoke("plan", "-m", model, "--vram-budget", "1", "--device", "cpu").stdout
    row = next(line.split() for line in shown.splitlines() if line.strip().startswith("mxfp4"))
    assert row[-3:] == ["0.531", "2", "3.8x"]
    assert "become F16 on the GPU" in shown
    (found,) = run_json("plan", "-m", model, "--vram-budget", "1", "--device", "cpu")["formats"]
    assert found["name"] == "mxfp4"
    assert (found["file_bytes_per_weight"], found["gpu_bytes_per_weight"]) == BYTES["mxfp4"]


@pytest.mark.usefixtures("slow_cpu")
@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("mxfp4", "llama-drelu-transposed", "mxfp4 3.8 times as much as in the file (q4_0, q8_0"),
        ("q4_k", "llama-drelu-transposed", None),
        ("q4_0", "llama-drelu-transposed", None),
        # What is said to stay as it is must not be what grows.
        ("q4_0", "llama-relu", "once `powerinfer pack` has stored down by neurons"),
    ],
)
def test_run_says_it_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, model: str, says: str | None
) -> None:
    options = engine_options(vram_budget="1", solver="greedy")
    device = Device("cpu", "a stand-in", is_interpreted=True)
    with LLM(_model(tmp_path, name, model), device="cpu") as llm:
        loaded: Any = llm.loaded
        task = placement_task(loaded.sparsity, loaded.file, loaded.tokenizer, options, device)
    chosen = choose_plan(task, options)
    placement = SimpleNamespace(
        task=task,
        chosen=chosen,
        plan=chosen.plan,
        problem=task.problem,
        device=device,
        handoff=None,
        predicted_tokens_per_s=None,
        asks_python=False,
    )
    shown: Any = SimpleNamespace(placement=placement, model=loaded.model)
    print_placement(shown)
    lines = " ".join(capsys.readouterr().err.split())
    assert lines.count("become F16 on the GPU") == int(says is not None)
    assert says is None or says in lines
