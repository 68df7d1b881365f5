"""Which checks of CI are due: what has changed decides, and only what passed is recorded."""

import importlib.util
import json
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest

from patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def ci() -> ModuleType:
    """scripts/ci_checks.py."""
    spec = importlib.util.spec_from_file_location("ci_checks", ROOT / "scripts" / "ci_checks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ci_checks"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def repository(tmp_path: Path, ci: ModuleType) -> Path:
    """A small repository in which every check has passed."""
    for name in ("cpp/ops/norm.cpp", "src/powerinfer/engine/llm.py", "docs/a.md", ".ci/run"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True, timeout=PATIENCE_S)
    inputs = ci.inputs_of_checks(tmp_path)
    for check in ci.CHECKS:
        ci.record_pass(check, inputs[check.name], 1.6, tmp_path)
    return tmp_path


def due(ci: ModuleType, root: Path) -> set[str]:
    return set(ci.due_checks(ci.inputs_of_checks(root), root))


def every(ci: ModuleType) -> set[str]:
    return {check.name for check in ci.CHECKS}


def test_nothing_is_due_after_all_have_passed(ci: ModuleType, repository: Path) -> None:
    assert due(ci, repository) == set()


def test_everything_is_due_without_a_record(ci: ModuleType, repository: Path) -> None:
    (repository / ".ci" / "passed.json").unlink()
    assert due(ci, repository) == every(ci)


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("docs/a.md", set()),
        ("src/powerinfer/engine/llm.py", {"newest-python"}),
        ("src/powerinfer/ops/cpu/ops.py", {"newest-python", "sanitizers"}),
        ("src/powerinfer/ops/hybrid/decode.py", {"newest-python", "gpu-check"}),
        ("src/powerinfer/serve/ollama/routes.py", {"newest-python", "clients"}),
        ("src/powerinfer/serve/page/static/page.js", set()),
        ("tests/clients/test_ollama.py", {"clients"}),
        ("scripts/test-arm64", {"arm64"}),
        ("Containerfile", {"container"}),
    ],
)
def test_a_change_makes_due_what_guards_it(
    path: str, wanted: set[str], ci: ModuleType, repository: Path
) -> None:
    (repository / path).parent.mkdir(parents=True, exist_ok=True)
    (repository / path).write_text("changed")
    assert due(ci, repository) == wanted


@pytest.mark.parametrize("path", ["new/place.txt", "cpp2/a.cpp", "setup.cfg"])
def test_a_path_in_no_row_makes_everything_due(path: str, ci: ModuleType, repository: Path) -> None:
    (repository / path).parent.mkdir(parents=True, exist_ok=True)
    (repository / path).write_text("new")
    assert due(ci, repository) == every(ci)


def test_a_removed_file_counts_as_changed(ci: ModuleType, repository: Path) -> None:
    (repository / "cpp" / "ops" / "norm.cpp").unlink()
    assert "arm64" in due(ci, repository)


def test_flags_of_builds_count(
    ci: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXXFLAGS", "-O0")
    assert due(ci, repository) == every(ci)


def test_every_file_of_the_repository_is_in_a_row(ci: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("git is not installed")
    loose = [
        path
        for path in ci.tracked_files()
        if not any(fnmatchcase(path, pattern) for pattern in ci.GUARDS)
    ]
    assert loose == []


def test_every_check_guards_something_and_rows_name_checks(ci: ModuleType) -> None:
    assert {name for checks in ci.GUARDS.values() for name in checks} == every(ci)


def test_a_record_says_where_and_how_long(ci: ModuleType, repository: Path) -> None:
    record = json.loads((repository / ".ci" / "passed.json").read_text())["checks"]["arm64"]
    assert record.keys() == {"inputs", "commit", "machine", "seconds"}
    assert record["seconds"] == 2
    assert "CPUs" in record["machine"]


def test_a_step_that_a_check_includes_runs_only_without_it(ci: ModuleType) -> None:
    alone, beside = ci.first_tier([]), ci.first_tier([check.name for check in ci.CHECKS])
    assert [step.name for step in alone if step not in beside] == ["sanitizers, fixed core"]
    assert all(step in alone for step in beside)
