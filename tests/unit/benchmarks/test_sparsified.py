"""benchmarks/sparsified.py: the model before, and a row for each run; a second start adds runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from pages import ROOT
from patience import PATIENCE_S
from sparsify_cases import LLAMA, write_sample


def _run(*command: object) -> str:
    given = [sys.executable, *map(str, command)]
    done = subprocess.run(given, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    return done.stdout


@pytest.mark.slow
def test_every_run_has_a_row(tmp_path: Path) -> None:
    config = LLAMA | {"max_position_embeddings": 512}
    checkpoint, text = write_sample(tmp_path, config)
    base, output = tmp_path / "base.gguf", tmp_path / "out.json"
    _run("-m", "powerinfer", "convert", checkpoint, "-o", base)
    runs = []
    for activation in ("drelu", "relu"):
        runs.append(tmp_path / activation)
        _run(
            *("-m", "powerinfer", "sparsify", checkpoint, "-f", text, "-o", runs[-1]),
            *("--tokens", 64, "--seq-len", 16, "--batch-tokens", 32, "--activation", activation),
        )
    benchmark = ROOT / "benchmarks" / "sparsified.py"
    fixed = ("--text", text, "-o", output, "--files", tmp_path / "files", "--seconds", 0)
    _run(benchmark, base, runs[0], *fixed)
    first = json.loads(output.read_text())["rows"]["drelu"]
    table = _run(benchmark, base, *runs, *fixed).splitlines()
    rows = [line.strip("| ").split(" | ") for line in table[2:]]
    assert [row[0] for row in rows] == ["base", "drelu", "relu"]
    assert [row[2] == "0.0%" for row in rows] == [True, False, False]
    assert json.loads(output.read_text())["rows"]["drelu"] | {"decode": {}} == first | {
        "decode": {}
    }
    assert {path.name for path in (tmp_path / "files").iterdir()} == {
        "base.gguf",
        "drelu.gguf",
        "relu.gguf",
    }
