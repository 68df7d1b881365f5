"""The benchmark of CPU and GPU together runs, here with interpreted kernels, and is tabulated."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
    for name in ("torch", "triton")
]


def _run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=BENCHMARKS,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.thorough
def test_a_model_is_made_placed_and_measured(tmp_path: Path) -> None:
    found = tmp_path / "hybrid-tiny.json"
    sizes = ("--shape", "tiny", "--steps", "1", "--threads", "2")
    _run("hybrid.py", *sizes, "--device", "cpu", "--only", "ce", "-o", found)
    result = json.loads(found.read_text(encoding="utf-8"))
    rows = {row["side"]: row for row in result["rows"]}
    assert rows["c"]["hot_share"] == rows["c"]["gpu_share"] == 0.0
    assert rows["e"]["hot_share"] == rows["e"]["gpu_share"] == 1.0
    assert rows["c"]["gpu_bytes"] < rows["e"]["gpu_bytes"]
    assert all(row["tokens_per_s"] > 0 and row["handoff"] == "eager" for row in rows.values())
    ratio = next(x for x in result["ratios"] if x["what"] == "e at 120%: predicted over measured")
    row = rows["e"]
    assert ratio["value"] == pytest.approx(row["predicted_tokens_per_s"] / row["tokens_per_s"])

    table = _run("hybrid_table.py", found)
    assert table.startswith("## tiny, 2 layers, f16")
    assert "| c every FFN on the CPU, exact | 60% |" in table
