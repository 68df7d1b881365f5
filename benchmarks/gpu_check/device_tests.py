"""The tests of `tests/gpu`: first alone those of graphs and hand-offs, then all others at once."""

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from gpu_check.findings import Finding, Verdict, verdict_of
from gpu_check.processes import Clock, Log, python, ran, started

__all__ = ["FIRST", "REPOSITORY", "pytest_command", "run_first", "run_others"]

REPOSITORY = Path(__file__).resolve().parents[2]
FIRST = "test_graph"
_FOLDER = REPOSITORY / "tests" / "gpu"


def pytest_command(modules: Sequence[str], *arguments: str) -> list[str]:
    """Without the fixtures of the other tests, which need hypothesis, and without a cache."""
    paths = [str(_FOLDER / f"{module}.py") for module in modules]
    options = ["-v", "-s", "-p", "no:cacheprovider", "-o", "filterwarnings=", "--durations=5"]
    # Of a test that hangs, where.
    options += ["-o", "faulthandler_timeout=60"]
    # Settings of plugins that a machine lacks would be errors.
    options += ["-o", "addopts=--import-mode=importlib"]
    folder = ["--rootdir", str(REPOSITORY), "--confcutdir", str(_FOLDER)]
    return python("-m", "pytest", *options, *folder, *arguments, *paths)


def run_first(log: Log, seconds: float) -> Finding:
    """What all else builds upon: recording, replaying, handing layers over."""
    ended = ran(pytest_command([FIRST]), log, seconds)
    return Finding(f"tests, {FIRST}", verdict_of(ended.code == 0), ended.text)


def run_others(log: Log, clock: Clock, seconds: float, folder: Path) -> list[Finding]:
    """Every other module in a process of its own: most of the time goes into compiling kernels.

    Args:
        log: gets what they print, one after the other.
        clock: of the whole part.
        seconds: until those that still run are ended.
        folder: for what they print meanwhile.
    """
    modules = sorted(path.stem for path in _FOLDER.glob("test_*.py") if path.stem != FIRST)
    ends = clock.seconds + seconds
    findings = []
    with ExitStack() as stack:
        running = []
        for module in modules:
            output = stack.enter_context((folder / f"{module}.log").open("w", encoding="utf-8"))
            process = stack.enter_context(started(pytest_command([module]), output))
            running.append((module, process))
        for module, process in running:
            try:
                code: int | None = process.wait(timeout=max(1.0, ends - clock.seconds))
                text = f"exit code {code}"
            except subprocess.TimeoutExpired:
                code, text = None, f"not done after {seconds:.0f} s"
            findings.append(Finding(f"tests, {module}", verdict_of(code == 0), text))
    for module, finding in zip(modules, findings, strict=True):
        printed = (folder / f"{module}.log").read_text(encoding="utf-8", errors="replace")
        log.write(f"\n=== {module}\n{printed}")
        if finding.verdict is Verdict.FAILED:
            log.write(f"=== {module}: {finding.text}\n")
    return findings
