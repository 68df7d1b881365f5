"""Commands that count neurons, on a model whose first layer has no experts."""

from dataclasses import replace
from pathlib import Path

import pytest

from command_line import invoke, run_json
from tiny_models import TINY_MODELS, write_model

RECIPE = replace(TINY_MODELS["lfm2moe"], activation="relu", is_down_transposed=True)
FEW = ("-p", "ab", "-n", "4", "--temp", "0", "--ignore-eos")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.gguf", RECIPE)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("once upon a time there was a tiny model that had two kinds of layers " * 12)
    return path


def test_profile_counts_the_layers_with_experts(model: Path, text: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    arguments = ("profile", "-m", model, "-f", text, "-o", tmp_path / "counts", "-c", "64")
    found = run_json(*arguments)
    assert [layer["layer"] for layer in found["layers"]] == [1, 2]
    assert all(0.2 < layer["active_share"] < 0.8 for layer in found["layers"])
    again = run_json(*arguments)
    assert (again["new_tokens"], again["layers"]) == (0, found["layers"])
    shown = invoke("profile", "-m", model, "-f", text, "-o", tmp_path / "counts", "-c", "64")
    assert [line.split()[0] for line in shown.stdout.splitlines()[1:3]] == ["1", "2"]


def test_a_calibration_chooses_for_the_layers_with_experts(model: Path, text: Path) -> None:
    measured = run_json("calibrate", "-m", model, "-f", text, "--max-ffn-error", "0.05")
    assert [layer["layer"] for layer in measured["layers"]] == [1, 2]
    ran = run_json("run", "-m", model, *FEW)
    assert ran["sparsity"].startswith("calibrated")
    chosen = [layer["kind"] for layer in measured["layers"]]
    assert ran["layer_kinds"] == ["exact", *chosen]
    assert chosen != ["exact", "exact"]


def test_recall_is_measured_in_the_layers_with_experts(model: Path) -> None:
    ran = run_json("run", "-m", model, *FEW, "--sparsity", "lowbit:3", "--measure-recall")
    assert ran["layer_kinds"] == ["exact", "lowbit:3", "lowbit:3"]
    first, *others = ran["recall"]
    assert first is None
    assert all(0.5 < recall <= 1 for recall in others)
