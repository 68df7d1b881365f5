"""Commands on ungated ReLU^2 blocks: a dense model, and experts beside a shared one."""

from dataclasses import replace
from pathlib import Path

import pytest

from command_line import invoke, run_json
from powerinfer.gguf import open_gguf
from tiny_models import TINY_MODELS, wide, write_model
from ungated_experts import UNGATED_EXPERTS, let_nemotron_have_experts

FEW = ("-p", "ab", "-n", "4", "--temp", "0", "--ignore-eos")
MODELS = {
    "dense": TINY_MODELS["nemotron"],
    "experts": UNGATED_EXPERTS["plain"],
    "latent": UNGATED_EXPERTS["latent-biases"],
}
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture(autouse=True)
def family(monkeypatch: pytest.MonkeyPatch) -> None:
    let_nemotron_have_experts(monkeypatch)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("once upon a time there was a tiny model that had no gates " * 12)
    return path


def packed(folder: Path, name: str) -> Path:
    plain = write_model(folder / "plain.gguf", MODELS[name])
    path = folder / "packed.gguf"
    result = invoke("pack", plain, "-o", path)
    assert result.exit_code == 0, result.output
    return path


@every_model
def test_packing_turns_every_down_and_loses_nothing(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path, name)
    downs = {n for n in open_gguf(path).tensors if "ffn_down" in n}
    assert all("_t." in n for n in downs)
    assert any("_exps_t." in n for n in downs) == any("_shexp_t." in n for n in downs)
    assert any("_exps_t." in n for n in downs) == (name != "dense")
    before, after, off = (
        run_json("run", "-m", each, *FEW, "--sparsity", kind)
        for each, kind in ((tmp_path / "plain.gguf", "exact"), (path, "exact"), (path, "off"))
    )
    assert before["token_ids"] == after["token_ids"] == off["token_ids"]
    assert after["bytes_per_token"] < before["bytes_per_token"]
    assert after["active_share"] < 0.75
    assert off["active_share"] == 1


def test_packed_blocks_are_skipped_in_quantized_formats(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain.gguf", tmp_path / "packed.gguf"
    write_model(plain, replace(wide(MODELS["experts"], "q4_0"), has_vocabulary=True))
    assert invoke("pack", plain, "-o", path).exit_code == 0
    exact, off = (
        run_json("run", "-m", path, *FEW, "--sparsity", kind) for kind in ("exact", "off")
    )
    assert exact["token_ids"] == off["token_ids"]
    assert exact["bytes_per_token"] < off["bytes_per_token"]


@every_model
def test_a_calibration_is_measured_and_used(name: str, tmp_path: Path, text: Path) -> None:
    path = packed(tmp_path, name)
    measured = run_json("calibrate", "-m", path, "-f", text, "--max-ffn-error", "0.05")
    assert all(0.2 < layer["active_share"] < 0.8 for layer in measured["layers"])
    ran = run_json("run", "-m", path, *FEW)
    assert ran["sparsity"].startswith("calibrated")
    exact = run_json("run", "-m", path, *FEW, "--sparsity", "exact")
    assert ran["predicted_share"] < 1
    assert ran["bytes_per_token"] < exact["bytes_per_token"]


def test_layers_without_ffn_are_not_said_to_be_off(tmp_path: Path, text: Path) -> None:
    path = write_model(tmp_path / "plain.gguf", TINY_MODELS["nemotron_h"])
    run_json("calibrate", "-m", path, "-f", text, "--kinds", "sign")
    ran = run_json("run", "-m", path, *FEW)
    assert ran["layer_kinds"].count("off") > 1
    summary = invoke("run", "-m", path, *FEW).stderr.partition("sparsity calibrated for ")[2]
    assert "layer" in summary
    assert " off" not in summary


@every_model
def test_predictors_skip_rows_of_up_too(name: str, tmp_path: Path) -> None:
    path = packed(tmp_path, name)
    oracle, exact = (
        run_json("run", "-m", path, *FEW, "--sparsity", kind) for kind in ("oracle", "exact")
    )
    assert oracle["token_ids"] == exact["token_ids"]
    assert oracle["active_share"] == pytest.approx(exact["active_share"])
    assert oracle["bytes_per_token"] < exact["bytes_per_token"]


@every_model
def test_inputs_are_measured_for_an_importance_matrix(
    name: str, tmp_path: Path, text: Path
) -> None:
    path = packed(tmp_path, name)
    result = invoke("imatrix", "-m", path, "-f", text, "-o", tmp_path / "im.gguf", "-c", "64")
    assert result.exit_code == 0, result.output
    num_matrices = {"dense": 12, "experts": 18, "latent": 22}[name]
    assert f"{num_matrices} matrices" in result.output
