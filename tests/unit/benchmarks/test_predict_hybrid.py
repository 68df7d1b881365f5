"""The table of predictions in docs/hybrid.md is what benchmarks/predict_hybrid.py prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]


def _rows(text: str) -> dict[str, list[float]]:
    """The rows of the table by the names of their models: every number in them."""
    rows = re.findall(r"^\| ([\w.-]+ (?:f16|q4_0)) \|(.*)$", text, re.MULTILINE)
    return {name: [float(found) for found in re.findall(r"[\d.]+", cells)] for name, cells in rows}


def test_the_page_has_the_table_that_the_script_prints() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "predict_hybrid.py")]
    printed = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=2 * PATIENCE_S
    ).stdout
    page = (ROOT / "docs" / "hybrid.md").read_text(encoding="utf-8")
    rows, wanted = _rows(printed), _rows(page)
    assert len(rows) == 4
    assert list(rows) == list(wanted)
    for name, numbers in rows.items():
        assert numbers == pytest.approx(wanted[name], rel=0.05), name
