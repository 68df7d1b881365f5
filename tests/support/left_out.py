"""Pytest plug-in: what a run left out, told in one line by reason, and refused where asked.

`--fail-on-unlisted-skip` accepts only the reasons below. `--fail-on-missing` refuses those
that a library, the development data, a browser or a real model would cure: CI leaves nothing out,
but real models (`--no-network`) where it has proven that no package index can be reached.
"""

import importlib.util
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

__all__ = ["FLOORS"]

# A fact of the machine or of the environment, which no set-up of ours changes.
MACHINE = (
    r"this CPU has \S+ kernels only",
    r"numpy rounds cosines differently here",
    r"only glibc's allocator is told",
    r"ray is installed here",
    r"needs CUDA",
    r"kernels are compiled here",
    r"memory cannot be limited here",
    r"no sandbox by (namespaces|bubblewrap) here",
    # Vocabularies that are not ours to pass on.
    r"the development data lacks ",
    # Not in CI: a peer that is compiled for many minutes, and 500 MB for one file of tests.
    r"(llama_cpp|ray) is not installed",
)
# Absent only where it was not installed or not given.
MISSING = (
    r"(torch|triton|transformers|safetensors|lm_eval|accelerate) is not installed",
    r"(playwright|chromium|openai|anthropic|schemathesis|mypy|sympy) is not installed",
    r"development data not found",
)
# scripts/real-models fetches them.
FETCHED = (r"POWERINFER_REAL_MODELS has no ",)
# Not in the first tier of CI: scripts/test-clients installs them in an environment of their own.
CLIENTS = (r"(ollama|langchain_openai|langchain_ollama|llama_index) is not installed",)

FLOORS = {
    "e2e": 150,
    "fuzz": 20,
    "golden": 300,
    "native": 400,
    "properties": 250,
    "unit": 2000,
}
"""Tests that must pass at least, by folder, when all are run without torch, data and browser."""

_reasons: defaultdict[str, Counter[str]] = defaultdict(Counter)
_passed: Counter[str] = Counter()
_deselected: dict[str, int] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options with which CI refuses skips."""
    parser.addoption(
        "--fail-on-unlisted-skip",
        action="store_true",
        help="fail if a test skips for a reason that tests/support/left_out.py does not list",
    )
    parser.addoption(
        "--fail-on-missing",
        action="store_true",
        help="also fail if a library, the development data, a browser or a real model is missing",
    )
    parser.addoption(
        "--fail-on-any-skip",
        action="store_true",
        help="fail if anything is left out: everything was installed for this run",
    )
    parser.addoption(
        "--no-network",
        action="store_true",
        help="accept that real models are missing: they could not be fetched",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "needs(*libraries): not run if one is not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests whose libraries are not installed; unlike skips they are only counted."""
    missing = {item: reason for item in items if (reason := _missing_library(item))}
    if missing:
        items[:] = [item for item in items if item not in missing]
        config.hook.pytest_deselected(items=list(missing))
    counts = dict(Counter(missing.values()))
    # A worker hands it to the process that prints.
    getattr(config, "workeroutput", {})["missing"] = counts
    _deselected.update(counts)


def _missing_library(item: pytest.Item) -> str:
    """Why a test cannot run; empty if it can."""
    for marker in item.iter_markers("needs"):
        for name in marker.args:
            if importlib.util.find_spec(name) is None:
                return f"{name} is not installed"
    return ""


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: "WorkerController") -> None:
    """Take over what a worker left out; all leave out the same."""
    _deselected.update(getattr(node, "workeroutput", {}).get("missing", {}))


def _note_skip(report: pytest.TestReport | pytest.CollectReport, kind: str) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    # Path, line and reason: a tuple, or a list where the report came from another process.
    found = report.longrepr
    reason = str(found[2] if isinstance(found, tuple | list) else found)
    _reasons[_without_paths(reason.removeprefix("Skipped: "))][kind] += 1


def _without_paths(reason: str) -> str:
    """One reason for all files of the development data."""
    return re.sub(r"( at| lacks) /.*", r"\1 some files", reason).removesuffix(" at some files")


# With several workers these two are called in the process that prints, for the reports of all.
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count a test's result."""
    _note_skip(report, "tests")
    if report.passed and report.when == "call":
        parts = Path(report.nodeid.partition("::")[0]).parts
        _passed[parts[1] if len(parts) > 2 else ""] += 1


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Count modules that skip as a whole."""
    _note_skip(report, "files")


def _left_out() -> dict[str, Counter[str]]:
    """Tests and files by reason."""
    reasons = {reason: counts.copy() for reason, counts in _reasons.items()}
    for reason, count in _deselected.items():
        reasons.setdefault(reason, Counter())["tests"] += count
    return dict(sorted(reasons.items()))


def _complaints(config: pytest.Config) -> list[str]:
    """What makes a run without failures fail nevertheless."""
    accepted: tuple[str, ...] = (".*",)
    if config.getoption("--fail-on-any-skip"):
        accepted = ()
    elif config.getoption("--fail-on-missing"):
        accepted = (*MACHINE, *CLIENTS, *(FETCHED if config.getoption("--no-network") else ()))
    elif config.getoption("--fail-on-unlisted-skip"):
        accepted = (*MACHINE, *CLIENTS, *MISSING, *FETCHED)
    found = [
        f"left out, which is an error here: {reason}"
        for reason in _left_out()
        if not any(re.search(pattern, reason) for pattern in accepted)
    ]
    if _is_whole_run(config):
        found += [
            f"only {_passed[folder]} tests passed in tests/{folder}, at least {least} should"
            for folder, least in FLOORS.items()
            if _passed[folder] < least
        ]
    return found


def _is_whole_run(config: pytest.Config) -> bool:
    """Whether nothing was asked for but all tests."""
    options = ("keyword", "markexpr", "deselect", "collectonly", "maxfail", "lf", "failedfirst")
    chosen = any(config.getoption(name, default=None) for name in options)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Turn complaints into a failure."""
    if not hasattr(session.config, "workerinput") and _complaints(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """One line for each reason, then the complaints."""
    for reason, counts in _left_out().items():
        told = " and ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        terminalreporter.write_line(f"left out: {told}: {reason}")
    curable = (*MISSING, *FETCHED)
    if any(re.search(pattern, reason) for reason in _left_out() for pattern in curable):
        terminalreporter.write_line(
            'CONTRIBUTING.md, "More tests", says how to install what is missing'
        )
    for complaint in _complaints(config):
        terminalreporter.write_line(complaint, red=True)
