"""`scripts/gpu-check` runs, here without a GPU: its parts, its results, what it says is missing."""

import importlib.util
import json
import os
import re
import runpy
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import powerinfer
from patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu-check"


def _run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON": sys.executable, "SKIP_BUILD": "1", **variables}
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        [SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=PATIENCE_S,
    )


@pytest.fixture
def _needs_gpu_extra() -> None:
    for module in ("torch", "triton"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def _bare_python(folder: Path) -> Path:
    """An environment with what a machine with a GPU must have, and not a package more."""
    required = runpy.run_path(str(ROOT / "benchmarks" / "gpu_check" / "requirements.py"))
    builder = venv.EnvBuilder(symlinks=True)
    builder.create(folder)
    site = next(folder.glob("lib/python*/site-packages"))
    (site / "powerinfer").symlink_to(Path(powerinfer.__file__).parent)
    names = {*required["REQUIRED"], *_with_what_they_need("torch", "triton")}
    for name in sorted(names):
        package = distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(str(package.locate_file(top)))
    return folder / "bin" / "python"


def _with_what_they_need(*names: str) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            needed = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        waiting += [re.split(r"[^\w.-]", one)[0] for one in needed if "extra ==" not in one]
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("_needs_gpu_extra")
def test_it_says_what_it_saw_and_what_needs_a_gpu(tmp_path: Path) -> None:
    # One check: each takes seconds to import torch and to interpret kernels.
    python = str(_bare_python(tmp_path / "bare"))
    only = "logits tiny-falcon-q4_0"
    done = _run(tmp_path / "out", "rest", DEVICE="cpu", ONLY=only, PYTHON=python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok      tiny-falcon-q4_0 in state S, logits: largest difference" in done.stdout
    assert "skipped tiny-falcon-q4_0 in state A, recorded: no CUDA" in done.stdout
    found = json.loads((tmp_path / "out" / "rest.json").read_text(encoding="utf-8"))
    assert found["failed"] == 0
    assert found["machine"]["gpu"] is None
    rows = {row["what"]: row for row in found["findings"]}
    assert rows["tiny-falcon-q4_0 in state F, logits"]["figures"]["same_tokens"] == 1
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"rest.json", "rest.log", "results.md", "gpu-check.tar.gz"}
    # The models that it made are gone.
    assert not list(tmp_path.glob("powerinfer-gpu-check-*"))


def test_what_cannot_begin_says_so_in_a_line(tmp_path: Path) -> None:
    without_torch = tmp_path / "python"
    without_torch.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n', encoding="utf-8")
    without_torch.chmod(0o755)
    for arguments, variables, told in (
        ((), {}, "usage: scripts/gpu-check OUT [PART...]"),
        ((tmp_path / "out", "frobnicate"), {}, "no part 'frobnicate'"),
        ((tmp_path / "out",), {"PYTHON": str(without_torch)}, "no torch and triton that see a GPU"),
    ):
        done = _run(*arguments, **variables)
        assert done.returncode == 2
        assert told in done.stderr


def test_the_help_teaches() -> None:
    done = _run("--help")
    assert done.returncode == 0
    for part in ("steps", "peers", "rest", "pip download", "DEVICE=cpu", "minutes"):
        assert part in done.stdout
