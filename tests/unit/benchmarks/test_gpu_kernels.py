"""benchmarks/gpu_kernels.py runs without a GPU."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "gpu_kernels.py"

for _needed in ("torch", "triton"):
    if importlib.util.find_spec(_needed) is None:
        pytest.skip(f"{_needed} is not installed", allow_module_level=True)


@pytest.mark.slow
def test_every_kernel_is_timed(tmp_path: Path) -> None:
    path = tmp_path / "kernels.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--formats", "f16,q4_0"]
    subprocess.run([*command, "-o", str(path)], check=True, timeout=PATIENCE_S)
    rows = json.loads(path.read_text())["rows"]
    assert {row["kernel"] for row in rows} == {
        "rms_norm", "quantize", "matvec", "mask", "value", "down", "ffn",
    }  # fmt: skip
    assert {row["format"] for row in rows} == {"f32", "f16", "q4_0"}
    assert all(row["seconds"] > 0 and row["num_bytes"] > 0 for row in rows)
