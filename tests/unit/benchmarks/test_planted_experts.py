"""Synthetic mixtures of experts of benchmarks/experts.py: what they promise is what runs."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from patience import PATIENCE_S
from powerinfer import LLM

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def write(folder: Path, shape: str, *options: str) -> Path:
    path = folder / f"{shape}.gguf"
    command = [sys.executable, str(BENCHMARKS / "experts.py"), "--shape", shape, "-o", str(path)]
    subprocess.run([*command, *options], check=True, capture_output=True, timeout=PATIENCE_S)
    return path


def shares(path: Path, sparsity: str) -> tuple[float, float]:
    """Of the neurons of chosen experts those that fire, and those that are computed."""
    tokens = np.random.default_rng(7).integers(300, 512, 40).tolist()
    with LLM(path, kernels="reference", sparsity=sparsity) as llm:
        logits = llm.new_sequence().extend_scored(tokens, len(tokens))
        assert np.isfinite(logits).all()
        model = llm.loaded.model
        router = model.weights.layers[0].ffn.router
        assert router is not None
        counters = model.ops.counters
        chosen = counters.total * router.num_used / router.num_experts
        return counters.active / chosen, counters.predicted / chosen


@pytest.mark.parametrize(("shape", "density"), [("tiny-smallthinker", 0.4), ("tiny-mixtral", 0.15)])
def test_neurons_fire_as_often_as_planted(shape: str, density: float, tmp_path: Path) -> None:
    active, predicted = shares(write(tmp_path, shape, "--format", "q8_0"), "exact")
    assert active == pytest.approx(density, abs=0.04)
    assert predicted == 1.0


def test_predictors_know_what_fires(tmp_path: Path) -> None:
    plain = tmp_path / "plain.gguf"
    options = "--rank", "64", "--format", "q8_0", "--plain", str(plain)
    path = write(tmp_path, "tiny-mixtral", *options)
    active, predicted = shares(path, "mlp")
    assert active == pytest.approx(0.15, abs=0.04)
    assert 0.15 < predicted < 0.35
    # So small a predictor misses some of those that fire.
    assert active > 0.75 * shares(plain, "exact")[0]


@pytest.mark.parametrize("shape", ["tiny-qwen3moe", "tiny-gpt-oss"])
def test_dense_experts_run(shape: str, tmp_path: Path) -> None:
    form = "mxfp4" if shape == "tiny-gpt-oss" else "q4_0"
    active, _ = shares(write(tmp_path, shape, "--format", form, "--other-format", "q8_0"), "off")
    assert active == 1.0
