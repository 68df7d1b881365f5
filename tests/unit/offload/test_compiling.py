"""Compiling kernels at a first start: shown, and found again by later ones."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
# Chooses how Triton runs, before anything else imports it.
pytest.importorskip("powerinfer.ops.gpu.kernels", reason="triton is not installed")

from patience import PATIENCE_S
from placed_models import tiny_file
from powerinfer import LLM
from powerinfer.offload import device_speeds
from powerinfer.offload import place as placing
from powerinfer.offload import problem as placement_problem
from powerinfer.offload.devices import Device
from powerinfer.offload.progress import PlacementProgress
from powerinfer.options.options import engine_options

# Compiles one of our kernels for a GPU that is not here, and prints how many were compiled.
_PROGRAM = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from powerinfer.ops.gpu.kernels import counting_compiled, norm

constants = {"HAS_BLOCKS": False, "BLOCK": 64}
types = {"x": "*fp32", "weight": "*fp32", "y": "*fp32", "blocks": "*fp32", "x_stride": "i32"}
types |= {"num_rows": "i32", "columns": "i32", "width": "i32", "eps": "fp32"}
types |= dict.fromkeys(constants, "constexpr")
source = ASTSource(norm.rms_norm_kernel, types, constexprs=constants)
counts = []
with counting_compiled(counts.append):
    triton.compile(source, target=GPUTarget("cuda", 90, 32))
print(counts)
"""


def _compiled(folder: Path, hash_seed: int) -> str:
    environment = os.environ | {
        "TRITON_INTERPRET": "0",
        "TRITON_CACHE_DIR": str(folder),
        "PYTHONHASHSEED": str(hash_seed),
    }
    command = [sys.executable, "-c", _PROGRAM]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_later_start_finds_what_an_earlier_one_compiled(tmp_path: Path) -> None:
    assert _compiled(tmp_path, 1) == "[0, 1]"
    assert any(tmp_path.iterdir())
    assert _compiled(tmp_path, 2) == "[0]"


def test_placing_shows_what_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setattr(placement_problem, "_free_bytes", lambda _: 4 << 30)
    speeds = device_speeds.machine_speeds
    monkeypatch.setattr(
        placement_problem, "machine_speeds", lambda ops, name, *_: speeds(ops, name, None)
    )
    monkeypatch.setattr("powerinfer.ops.hybrid.ops.HybridOps.pin", lambda _: False)

    def compile_some(*_: Any) -> None:
        listener: Any = knobs.compilation.listener
        for number in range(40):
            listener(cache_hit=number % 2 == 0, src=None, metadata={}, metadata_group={}, times=0)

    monkeypatch.setattr(placing, "_try_out", compile_some)
    seen: list[tuple[int, int]] = []
    asked = engine_options(batch_size=4, vram_budget="2", solver="greedy")
    with LLM(tiny_file(tmp_path, "bamboo"), device="cpu") as llm:
        loaded = llm.loaded
        parts = loaded.sparsity, loaded.file, loaded.tokenizer, asked, Device("cpu", "a GPU")
        placing.place(*parts, PlacementProgress(kernels=lambda *step: seen.append(step)))
    assert [done for done, _ in seen[:-1]] == list(range(21))
    assert all(done < total for done, total in seen[:-1])
    assert seen[-1][0] == seen[-1][1]
    assert knobs.compilation.listener is None
