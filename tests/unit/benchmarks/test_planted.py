"""Synthetic models of benchmarks/planted.py: what they promise is what the engine measures."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE_S
from powerinfer import LLM
from powerinfer.gguf import open_gguf

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
DENSITY = 0.10
SHAPES = ("tiny", "tiny-bamboo", "tiny-opt", "tiny-falcon", "tiny-falcon-2")


def _script(name: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / name), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout


@pytest.fixture(scope="module", params=SHAPES)
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The PowerInfer file of one shape; `plain.gguf` beside it."""
    folder = tmp_path_factory.mktemp(request.param)
    path: Path = folder / "sparse.gguf"
    _script(
        "planted.py", "--shape", request.param, "-o", str(path), "--plain", f"{folder}/plain.gguf"
    )
    return path


def _logits(path: Path, **options: Any) -> tuple[np.ndarray, float, float]:
    """Logits after some random tokens; shares of neurons that fired and that were predicted."""
    tokens = np.random.default_rng(7).integers(300, 512, 40).tolist()
    with LLM(path, kernels="reference", **options) as llm:
        logits = llm.new_sequence().extend_scored(tokens, len(tokens))
        counters = llm.loaded.model.ops.counters
        shares = counters.active / counters.total, counters.predicted / counters.total
        return logits, *shares


def test_the_engine_sees_the_planted_density(planted: Path) -> None:
    mean = json.loads(planted.with_suffix(".planted.json").read_text("utf8"))["mean"]
    _, active, _ = _logits(planted, sparsity="exact")
    assert mean["density"] == pytest.approx(DENSITY, abs=0.02)
    assert active == pytest.approx(mean["density"], abs=0.02)
    assert mean["recall"] > 0.93
    assert mean["predicted_density"] < 0.16
    assert mean["ffn_error"] < 0.05


def test_the_engine_sees_the_predictor(planted: Path) -> None:
    mean = json.loads(planted.with_suffix(".planted.json").read_text("utf8"))["mean"]
    _, active, predicted = _logits(planted, sparsity="mlp")
    assert predicted == pytest.approx(mean["predicted_density"], abs=0.02)
    assert active == pytest.approx(mean["density"] * mean["recall"], abs=0.02)


def test_the_file_carries_its_statistics(planted: Path) -> None:
    mean = json.loads(planted.with_suffix(".planted.json").read_text("utf8"))["mean"]
    file = open_gguf(planted)
    for name, value in mean.items():
        assert file.get_float(f"powerinfer.synthetic.{name}") == pytest.approx(value, rel=1e-6)


def test_the_plain_twin_has_the_same_weights(planted: Path) -> None:
    sparse, plain = open_gguf(planted), open_gguf(planted.with_name("plain.gguf"))
    if sparse.get_str("general.architecture") == "opt":
        # Two FFN matrices of OPT in the place of three: as many bytes, up to a block per row.
        weights = [
            sum(tensor.num_elements for name, tensor in file.tensors.items() if ".ffn_" in name)
            for file in (sparse, plain)
        ]
        assert weights[1] == pytest.approx(weights[0], rel=0.07)
        return
    activation = "drelu" if sparse.get_str("general.architecture") == "bamboo" else "relu"
    wanted, _, _ = _logits(planted, sparsity="off")
    got, _, _ = _logits(planted.with_name("plain.gguf"), sparsity="off", activation=activation)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_bounds_of_a_planted_file(planted: Path) -> None:
    lines = _script("bounds.py", str(planted)).splitlines()
    bounds = {line.split()[0]: float(line.split()[-1]) for line in lines[1:]}
    assert 1 < bounds["exact"] < bounds["oracle"]
    assert 1 < bounds["mlp"] < bounds["mlp:q4_0"] < bounds["oracle"]


def test_bounds_of_a_shape() -> None:
    """ReluLLaMA-7B in F16: 4.295 GB of attention, 0.262 of head, 8.657 of FFN, predictor 0.990."""
    lines = _script(
        "bounds.py", "--shape", "relullama-7b", "--density", "0.1", "--predicted", "0.127"
    ).splitlines()
    bounds = {line.split()[0]: float(line.split()[-1]) for line in lines[1:]}
    assert bounds["oracle"] == pytest.approx(13.214 / (4.557 + 0.866), abs=0.01)
    assert bounds["exact"] == pytest.approx(13.214 / (4.557 + 1.2 / 3 * 8.657), abs=0.01)
    assert bounds["mlp"] == pytest.approx(13.214 / (5.547 + 0.327 / 3 * 8.657), abs=0.01)


@pytest.mark.slow
def test_compare_prints_ratio_and_bound(tmp_path: Path) -> None:
    """Ours against our own dense; the tables of the result name every kind."""
    model, plain, result = (tmp_path / name for name in ("tiny.gguf", "plain.gguf", "tiny.json"))
    _script("planted.py", "--shape", "tiny", "-o", str(model), "--plain", str(plain))
    kinds = ["--sparsity", "mlp", "--sparsity", "exact", "--plain", str(plain), "--dense-plain"]
    plan = ["--no-peer", "--pairs", "1", "--prefill", "", "--decode", "2", "-o", str(result)]
    _script("compare.py", str(model), *kinds, *plan)
    found = json.loads(result.read_text("utf8"))["results"][0]["kinds"]
    assert list(found) == ["dense", "mlp", "exact"]
    for kind in ("mlp", "exact"):
        assert found[kind]["against"]["dense"]["decode"]["ratio"] > 0
        assert found[kind]["against"]["dense, plain file"]["decode"]["ratio"] > 0
        assert found[kind]["bytes_per_token"] < found["dense"]["bytes_per_token"]
        assert found[kind]["bound"] > found["dense"]["bound"] == 1.0
    table = _script("table.py", str(tmp_path))
    assert "| tiny | mlp |" in table
    assert "| tiny | exact |" in table
