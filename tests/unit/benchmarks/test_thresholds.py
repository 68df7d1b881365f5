"""benchmarks/thresholds.py: one row for each threshold, beside the file as it was."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pages import ROOT
from patience import PATIENCE_S
from tiny_models import TINY_MODELS, write_model


@pytest.mark.slow
def test_the_curve_has_a_row_for_each_threshold(tmp_path: Path) -> None:
    recipe = replace(TINY_MODELS["llama"], context_length=512)
    model = write_model(tmp_path / "m.gguf", recipe)
    text, folder = tmp_path / "text.txt", tmp_path / "curve"
    text.write_text("the old fox saw a red hen run over the hill. " * 12)
    command = [sys.executable, str(ROOT / "benchmarks" / "thresholds.py"), str(model), str(text)]
    command += ["-o", str(folder), "--thresholds", "0.05,0.3", "--windows", "1"]
    command += ["--seconds", "0", "-t", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()]
    names = ["off, not packed", "off", "threshold:0.05", "threshold:0.3"]
    assert rows[0] == ["setting", "zeros", "perplexity", "change", "tokens/s", "speed"]
    assert [row[0] for row in rows[2:]] == names
    zeros = [float(row[1].rstrip("%")) for row in rows[3:]]
    assert 0 == zeros[0] < zeros[1] < zeros[2] < 100
    decoded = json.loads((folder / "decode.json").read_text())
    assert [row["threshold"] for row in decoded["rows"]] == [None, None, "0.05", "0.3"]
    assert all(row["best_ms"] <= row["p10_ms"] <= row["median_ms"] for row in decoded["rows"])
