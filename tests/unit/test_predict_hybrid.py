"""The table of predictions in docs/hybrid.md is what benchmarks/predict_hybrid.py prints."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_has_the_table_that_the_script_prints() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "predict_hybrid.py")]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    page = (ROOT / "docs" / "hybrid.md").read_text(encoding="utf-8")
    rows = [line for line in printed.splitlines() if "f16" in line or "q4_0" in line]
    assert len(rows) == 4
    for row in rows:
        assert row in page
