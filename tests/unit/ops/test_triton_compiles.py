"""Every Triton kernel compiles for GPUs, which the interpreter of the other tests does not show."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "support" / "triton_ahead.py"
# Two minutes on an idle machine, each kernel in several variants.
_COMPILING_S = 540.0
KERNELS = SCRIPT.parents[2] / "src" / "powerinfer" / "ops" / "gpu" / "kernels"

for _needed in ("torch", "triton"):
    if importlib.util.find_spec(_needed) is None:
        pytest.skip(f"{_needed} is not installed", allow_module_level=True)


@pytest.mark.thorough
def test_all_kernels_compile_for_hopper(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "90"],
        # A cache of its own: what was compiled once would hide what no longer compiles.
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=_COMPILING_S,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    compiled = {line.split()[0] for line in run.stdout.splitlines()}
    texts = [path.read_text(encoding="utf8") for path in KERNELS.glob("*.py")]
    written = {
        line.split("(")[0].removeprefix("def ")
        for text in texts
        for line in text.splitlines()
        if line.startswith("def ") and line.split("(")[0].endswith("_kernel")
    }
    assert written, "no kernels found"
    assert written <= compiled, f"never launched: {sorted(written - compiled)}"
