"""benchmarks/quantizers.py: fewer bits are fewer bytes and a greater distance from F16."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S
from powerinfer.store.default_model import find_model

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "quantizers.py"


@pytest.mark.slow
def test_a_row_for_every_type(tmp_path: Path) -> None:
    text, output = tmp_path / "text.txt", tmp_path / "out" / "quantizers.json"
    text.write_text("Once there was a girl who had a red ball and a small dog. " * 3, "utf8")
    command = [sys.executable, str(SCRIPT), str(find_model(None)), "--text", str(text)]
    command += ["--types", "Q8_0,Q4_0", "--window", "16", "--threads", "1", "-o", str(output)]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    rows = json.loads(output.read_text("utf8"))["rows"]
    assert [row["type"] for row in rows] == ["F16", "Q8_0", "Q4_0"]
    assert rows[0]["kl"] == 0
    assert rows[0]["kl"] < rows[1]["kl"] < rows[2]["kl"]
    assert rows[0]["bytes"] > rows[1]["bytes"] > rows[2]["bytes"]
