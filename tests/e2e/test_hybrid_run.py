"""CPU and GPU together, whole programs: the text is the CPU's, whatever lies where.

Without a GPU the kernels are interpreted, which is slow: the models are tiny.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from patience import PATIENCE_S
from tiny_models import TINY_MODELS, write_model

TOKENS = ("-p", "hi", "-n", "4", "--temp", "0", "--ignore-eos")


@pytest.fixture(autouse=True, scope="module")
def _needs_gpu_extra() -> None:
    for module in ("torch", "triton"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    names = ("bamboo", "llama-drelu-transposed", "falcon-powerinfer")
    return {name: write_model(folder / f"{name}.gguf", TINY_MODELS[name]) for name in names}


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "powerinfer", *map(str, arguments)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=2 * PATIENCE_S
    )


def _report(*arguments: object) -> dict[str, Any]:
    done = _run("run", *arguments, *TOKENS, "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


# Two of many models: tests/properties/test_hybrid.py draws from all. bamboo is run below.
@pytest.mark.parametrize("name", ["llama-drelu-transposed", "falcon-powerinfer"])
@pytest.mark.thorough
def test_the_text_is_the_cpus(models: dict[str, Path], name: str) -> None:
    options = ("-m", models[name], "--device", "cuda", "--solver", "greedy")
    alone = _report("-m", models[name], "--device", "cpu")
    assert alone["device"] == "cpu"
    whole = _report(*options, "--vram-budget", "1")
    assert whole["token_ids"] == alone["token_ids"]
    assert whole["device"] in ("interpreted", "cuda:0")
    assert whole["gpu_share"] == pytest.approx(1)
    assert whole["gpu_bytes"] <= whole["vram_budget_bytes"] == 1 << 30
    assert whole["handoff"]
    # All but some neurons of one layer.
    budget = f"{(whole['gpu_bytes'] - 4000) / (1 << 20):.6f}MiB"
    split = _report(*options, "--vram-budget", budget)
    assert split["token_ids"] == alone["token_ids"]
    assert 0 < split["gpu_share"] < 1


@pytest.mark.slow
def test_a_model_on_two_devices_reports_where_everything_is(models: dict[str, Path]) -> None:
    model = ("-m", models["bamboo"], *TOKENS)
    done = _run("run", *model, "--vram-budget", "1", "--disable-gpu-index", "--no-online")
    assert done.returncode == 0, done.stderr
    for part in ("attention", "KV cache", "hot neurons", "none", "output head", "total"):
        assert part in done.stderr
    alone = _run("run", *model, "--device", "cpu")
    assert done.stdout == alone.stdout
    assert "hot neurons" not in alone.stderr


@pytest.mark.slow
def test_too_small_a_budget_runs_on_the_cpu(models: dict[str, Path]) -> None:
    done = _run("run", "-m", models["bamboo"], *TOKENS, "--vram-budget", "1MiB", "--json")
    assert done.returncode == 0, done.stderr
    assert "the CPU runs alone" in done.stderr
    report = json.loads(done.stdout)
    assert report["device"] == "cpu"
    assert report["gpu_bytes"] is None


@pytest.mark.thorough
def test_a_named_plan_is_used(models: dict[str, Path], tmp_path: Path) -> None:
    """The budget counts what a driver needs, 1 GiB and more, though none is there."""
    plan = tmp_path / "named.plan.json"
    model = ("-m", models["bamboo"])
    made = _run(
        "plan", *model, "--device", "cpu", "--vram-budget", "2", "--solver", "greedy", "-o", plan
    )
    assert made.returncode == 0, made.stderr
    done = _run("run", *model, *TOKENS, "--vram-budget", "1", "--gpu-index", plan)
    assert done.returncode == 0, done.stderr
    assert f"named: {plan}" in done.stderr
    missing = _run("run", *model, *TOKENS, "--vram-budget", "1", "--gpu-index", tmp_path / "no")
    assert missing.returncode == 2
    assert "no: cannot be read" in missing.stderr
    assert "Traceback" not in missing.stderr
