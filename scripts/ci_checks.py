"""What `scripts/ci` runs, which files each check of the second tier guards, and what has passed.

The first tier always runs. A check of the second tier runs when something that it guards is not as
it was when the check last passed: a hash covers the files, the check's own script, the flags of
builds and the versions of tools. `.ci/passed.json` keeps it; commit that file with the change.
"""

import fnmatch
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

__all__ = [
    "ALL",
    "ALL_TESTS",
    "CHECKS",
    "GUARDS",
    "ON_REQUEST",
    "ROOT",
    "SET_UP",
    "TESTS",
    "Check",
    "Passed",
    "Step",
    "due_checks",
    "first_tier",
    "guards_of",
    "inputs_of_checks",
    "record_pass",
    "tracked_files",
]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Step:
    """A command of the first tier.

    Attributes:
        name: in the table of steps.
        command: run in the repository root.
        is_alone: it uses both cores; other steps run two at a time, with one core each.
        part_of: name of a check that does the same and more; where that runs, this need not.
    """

    name: str
    command: Sequence[str]
    is_alone: bool = False
    part_of: str | None = None


@dataclass(frozen=True)
class Check(Step):
    """A command of the second tier.

    Attributes:
        tools: commands whose first line of output is the version of a tool.
    """

    tools: tuple[str, ...] = ()


SET_UP = (
    Step("system packages", ["scripts/ci-packages"], is_alone=True),
    Step("set-up", ["scripts/ci-setup"], is_alone=True),
)
FIRST_TIER = (
    Step("lint and types", ["scripts/check"]),
    Step("clang-tidy, changed files", ["scripts/clang-tidy", "--changed"]),
    Step(
        "sanitizers, fixed core",
        ["scripts/sanitize", "core"],
        is_alone=True,
        part_of="sanitizers",
    ),
    Step("wheel", ["scripts/wheel-smoke"]),
)
TESTS = Step("tests", ["scripts/ci-tests"], is_alone=True)
ALL_TESTS = Step("all tests", ["scripts/ci-tests", "--all"], is_alone=True)

PYTHON = ".venv/bin/python --version"
CXX = "c++ --version"
NEWEST_PYTHON = (
    *("scripts/test-newest-python", "--fail-on-unlisted-skip", "tests/unit", "tests/fuzz"),
    *("tests/golden", "tests/e2e/test_processes.py", "tests/test_architecture.py"),
)
GPU_CHECK = (
    *("env", "DEVICE=cpu", "SKIP_BUILD=1", "PYTHON=.venv/bin/python"),
    *("scripts/gpu-check", "build/gpu-check", "steps", "peers", "rest"),
)
# The longest first: two run at a time, and both lanes should end at about the same time.
CHECKS = (
    Check("arm64", ["scripts/test-arm64"], tools=("aarch64-linux-gnu-g++ --version",)),
    Check("sanitizers", ["scripts/sanitize", "address"], tools=(CXX, PYTHON)),
    Check("newest-python", NEWEST_PYTHON, tools=("python3.13 --version",)),
    Check("gpu-check", GPU_CHECK, tools=(PYTHON,)),
    Check("container", ["scripts/container-check"]),
    Check("threads", ["scripts/sanitize", "threads"], tools=(CXX,)),
    Check("clients", ["scripts/test-clients"], tools=(PYTHON,)),
)
ON_REQUEST = (Step("gpu-ahead", ["scripts/gpu-ahead"]),)
"""What only `scripts/ci all` runs besides."""

ALL = tuple(check.name for check in CHECKS)
# Which files each check guards. Every file belongs to a row, also those that only the first tier
# reads, so that a new kind of file cannot go unchecked: a file in no row makes everything due.
NOTHING: tuple[str, ...] = ()
NATIVE = ("arm64", "threads", "sanitizers", "container", "newest-python")
PYTHON_CODE = ("newest-python",)
GUARDS: dict[str, tuple[str, ...]] = {
    "cpp/*": NATIVE,
    "CMakeLists.txt": NATIVE,
    "pyproject.toml": ("sanitizers", "container", "newest-python", "clients"),
    "src/powerinfer/ops/cpu/*": (*PYTHON_CODE, "sanitizers"),
    "src/powerinfer/serve/page/static/*": NOTHING,
    "src/powerinfer/serve/*": (*PYTHON_CODE, "clients"),
    "src/powerinfer/_core.pyi": (*PYTHON_CODE, "sanitizers"),
    "src/powerinfer/ops/gpu/*": (*PYTHON_CODE, "gpu-check"),
    "src/powerinfer/ops/hybrid/*": (*PYTHON_CODE, "gpu-check"),
    "src/powerinfer/offload/*": (*PYTHON_CODE, "gpu-check"),
    "src/*": PYTHON_CODE,
    "tests/native/*": (*PYTHON_CODE, "sanitizers"),
    "tests/clients/*": ("clients",),
    "tests/e2e/test_*_client.py": ("clients",),
    "tests/support/client_cases.py": ("clients",),
    "tests/support/serving.py": (*PYTHON_CODE, "clients"),
    "tests/durations.json": NOTHING,
    "tests/*": PYTHON_CODE,
    "benchmarks/results/*": NOTHING,
    "benchmarks/*": ("gpu-check",),
    "examples/*": NOTHING,
    "recipes/*": NOTHING,
    "Containerfile": ("container",),
    ".containerignore": ("container",),
    "docs/*": NOTHING,
    "*.md": NOTHING,
    "LICENSE": NOTHING,
    ".gitignore": NOTHING,
    ".clang-format": NOTHING,
    ".clang-tidy": NOTHING,
    ".pre-commit-config.yaml": NOTHING,
    ".ci/*": NOTHING,
    "scripts/setup": ("newest-python", "container"),
    "scripts/test": PYTHON_CODE,
    "scripts/test-arm64": ("arm64",),
    "scripts/test-newest-python": ("newest-python",),
    "scripts/sanitize": ("threads", "sanitizers"),
    "scripts/container-*": ("container",),
    "scripts/gpu-check": ("gpu-check",),
    "scripts/test-clients": ("clients",),
    "scripts/*": NOTHING,
}


class Passed(TypedDict):
    """How a check last passed.

    Attributes:
        inputs: SHA-256 of what it guards.
        commit: that was checked; "+" after it means that the work tree had changes.
        machine: processor and number of CPUs.
        seconds: that it took.
    """

    inputs: str
    commit: str
    machine: str
    seconds: int


def guards_of(path: str) -> tuple[str, ...]:
    """Checks that a file belongs to: those of the first row that fits; all of them if none does."""
    for pattern, checks in GUARDS.items():
        if fnmatch.fnmatchcase(path, pattern):
            return checks
    return ALL


def tracked_files(root: Path = ROOT) -> list[str]:
    """Paths of the repository: what git knows, and what is new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout
    return sorted(path for path in os.fsdecode(listed).split("\0") if path)


def inputs_of(check: Check, files: Sequence[str], root: Path = ROOT) -> str:
    """SHA-256 of the files that a check guards, its command, build flags, and its tools."""
    digest = hashlib.sha256(" ".join(check.command).encode())
    for name in ("CFLAGS", "CXXFLAGS", "LDFLAGS"):
        digest.update(f"{name}={os.environ.get(name, '')}\n".encode())
    for tool in check.tools:
        digest.update(f"{tool}: {_first_line(tool, root)}\n".encode())
    for path in files:
        if check.name in guards_of(path) and (root / path).is_file():
            digest.update(f"{path}\n".encode())
            digest.update(hashlib.sha256((root / path).read_bytes()).digest())
    return digest.hexdigest()


def _first_line(command: str, root: Path) -> str:
    try:
        done = subprocess.run(
            command.split(), cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return "not installed"
    return (done.stdout.splitlines() or [""])[0]


def inputs_of_checks(root: Path = ROOT) -> dict[str, str]:
    """Hash of what each check guards, as it is now."""
    files = tracked_files(root)
    return {check.name: inputs_of(check, files, root) for check in CHECKS}


def due_checks(inputs: Mapping[str, str], root: Path = ROOT) -> dict[str, str]:
    """Names of the checks that have to run, each with the reason.

    Args:
        inputs: hashes by the name of the check.
        root: of the repository.
    """
    record = read_record(root)
    due = {}
    for name, now in inputs.items():
        if name not in record:
            due[name] = "it has never passed"
        elif record[name]["inputs"] != now:
            due[name] = (
                f"something it guards has changed since it passed at {record[name]['commit']}"
            )
    return due


def first_tier(names: Collection[str]) -> list[Step]:
    """Steps of the first tier before the tests.

    Args:
        names: of the checks that run after it.
    """
    return [step for step in FIRST_TIER if step.part_of not in names]


def read_record(root: Path = ROOT) -> dict[str, Passed]:
    """What has passed; nothing where the file is missing."""
    path = root / ".ci" / "passed.json"
    if not path.exists():
        return {}
    found: dict[str, Passed] = json.loads(path.read_text(encoding="utf-8"))["checks"]
    return found


def record_pass(check: Check, inputs: str, seconds: float, root: Path = ROOT) -> None:
    """Record that a check passed, with the hash of what it guarded when it began."""
    checks = read_record(root)
    checks[check.name] = Passed(
        inputs=inputs,
        commit=_commit(root),
        machine=f"{_processor()}, {os.cpu_count()} CPUs",
        seconds=round(seconds),
    )
    path = root / ".ci" / "passed.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps({"checks": checks}, indent=2, sort_keys=True) + "\n")
    part.replace(path)


def _commit(root: Path) -> str:
    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=False
        ).stdout.strip()

    return git("rev-parse", "--short=10", "HEAD") + ("+" if git("status", "--porcelain") else "")


def _processor() -> str:
    """Name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
