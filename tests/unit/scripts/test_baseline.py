"""`scripts/baseline`: what it reads of reports and logs, and what it calls below."""

import json
import subprocess
import sys
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_one[x.y]" time="1.5" />
<testcase classname="tests.unit.test_a.TestTwo" name="runTest" time="0.25" />
<testcase classname="tests.unit.test_a" name="test_three" time="0"><failure message="" /></testcase>
<testcase classname="tests.gpu.test_b" name="test_one"><skipped message="needs CUDA" /></testcase>
<testcase classname="" name="tests.gpu.test_c"><skipped message="needs CUDA at /dev" /></testcase>
<testcase classname="tests.test_top" name="test_it" time="2" />
</testsuite></testsuites>"""

HEADERS = """
== install (2s)
== check (62s)
sanitizers: fine

== sanitizers: done (100s)
sanitizers took 90s

== tests (101s)
== done (401s)
"""


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def _module(name: str) -> ModuleType:
    return import_module(f"baselines.{name}")


def _tests(folder: Path) -> Any:
    path = folder / "report.xml"
    path.write_text(REPORT, encoding="utf-8")
    return _module("reports").read_tests(path)


def test_ids_skips_and_seconds_of_a_report(tmp_path: Path) -> None:
    section = _tests(tmp_path)
    assert section["counts"] == {"failed": 1, "passed": 3, "skipped": 2}
    assert section["skips"] == {"needs CUDA": 2}
    assert section["folders"]["unit"] == {"seconds": 1.8, "failed": 1, "passed": 2}
    assert section["folders"]["."] == {"seconds": 2.0, "passed": 1}
    assert section["files"]["unit/test_a.py"]["cases"] == {
        "failed": {"test_three": 1},
        "passed": {"TestTwo::runTest": 1, "test_one": 1},
    }
    assert section["files"]["gpu/test_c.py"]["cases"] == {"skipped": {"(file)": 1}}


def test_coverage_by_package(tmp_path: Path) -> None:
    names = ("covered_lines", "covered_branches", "num_statements", "num_branches")
    files = {
        "/x/site-packages/powerinfer/engine/llm.py": (6, 1, 8, 2),
        "src/powerinfer/engine/grammar/cache.py": (9, 1, 9, 1),
        "src/powerinfer/values.py": (1, 0, 4, 0),
    }
    report = {
        path: {"summary": dict(zip(names, each, strict=True))} for path, each in files.items()
    }
    path = tmp_path / "coverage.json"
    path.write_text(json.dumps({"files": report}), encoding="utf-8")
    assert _module("reports").read_coverage(path) == {".": 25.0, "all": 75.0, "engine": 85.0}


@pytest.mark.parametrize(
    ("log", "seconds"),
    [
        (
            "noise\nstep check: 61 s\nstep b: not due\nstep all: 300.5 s of 900 s\n",
            {"check": 61, "all": 300.5},
        ),
        (HEADERS, {"install": 60, "check": 38, "tests": 300, "sanitizers": 90, "all": 401}),
    ],
)
def test_steps_of_a_log(log: str, seconds: dict[str, float]) -> None:
    assert _module("steps").read_steps(log) == {"seconds": seconds}


def test_a_log_without_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="no step"):
        _module("steps").read_steps("== a heading ==\n")


def _whole(folder: Path) -> Any:
    return {
        "tests": {**_tests(folder), "coverage": {"engine": 96.0}},
        "mutation": {"areas": {"pool": {"percent": 90.0}}},
        "speed": {
            "origin": {"commit": "abc"},
            "other": "abc",
            "models": {"embedded": {"decode": {"ratio": 1.0}}},
        },
        "goldens": {"sha256": {"a.json": "1", "b.json": "2"}},
        "ci": {"seconds": {"tests": 300.0}},
    }


def test_nothing_is_below_itself(tmp_path: Path) -> None:
    old = _whole(tmp_path)
    new = deepcopy(old)
    # A test that moved, a slightly slower step.
    new["tests"]["files"]["e2e/test_top.py"] = new["tests"]["files"].pop("test_top.py")
    new["ci"]["seconds"] = {"tests": 320.0}
    assert _module("comparison").compare(old, new) == []


def test_whatever_is_below_is_named(tmp_path: Path) -> None:
    old = _whole(tmp_path)
    new = deepcopy(old)
    unit = new["tests"]["files"]["unit/test_a.py"]["cases"]
    unit["skipped"] = {"test_one": unit["passed"].pop("test_one")}
    del new["tests"]["files"]["gpu/test_c.py"]
    new["tests"]["coverage"] = {"engine": 95.0}
    new["mutation"]["areas"] = {"pool": {"percent": 89.9}}
    new["speed"]["models"]["embedded"]["decode"]["ratio"] = 0.96
    new["speed"]["other"] = "def"
    new["goldens"]["sha256"] = {"a.json": "3"}
    del new["ci"]
    assert _module("comparison").compare(old, new) == [
        "tests: gpu/test_c.py::(file) is gone",
        "tests: unit/test_a.py::test_one: 0 cases pass after 1",
        "tests: coverage of engine: 95.0 % after 96.0 %",
        "mutation: pool: 89.9 % noticed after 90.0 %",
        "speed: measured beside def, not abc",
        "speed: decode of embedded: 0.96 of the speed",
        "goldens: a.json changed",
        "goldens: b.json is gone",
        "ci: not measured",
    ]


def test_a_section_is_filled_beside_others_and_compared(tmp_path: Path) -> None:
    script = str(ROOT / "scripts" / "baseline")
    old, new, log = (tmp_path / name for name in ("old.json", "new.json", "log"))
    for path, text in ((old, "step tests: 10 s"), (new, "step tests: 40 s")):
        path.write_text('{"goldens": {"sha256": {}}}', encoding="utf-8")
        log.write_text(text, encoding="utf-8")
        options = ["-o", str(path), "ci", str(log)]
        subprocess.run([sys.executable, script, *options], check=True)
    assert json.loads(new.read_text("utf-8"))["ci"]["origin"]["cores"] >= 1
    compared = subprocess.run(
        [sys.executable, script, "compare", str(old), str(new)], capture_output=True, text=True
    )
    assert (compared.returncode, compared.stdout) == (1, "ci: tests: 40.0 s after 10.0 s\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["compare", "none.json", "none.json"],
        ["tests", "none.xml", "none.json"],
        ["ci", "empty.log"],
        ["speed", "--other", "nowhere"],
    ],
)
def test_what_cannot_be_read_is_one_line_and_changes_nothing(
    arguments: list[str], tmp_path: Path
) -> None:
    (tmp_path / "empty.log").touch()
    script = str(ROOT / "scripts" / "baseline")
    command = [sys.executable, script, "-o", str(tmp_path / "new.json"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new.json").exists()
