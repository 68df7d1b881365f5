"""Fixtures and options shared by all tests: data folder, hypothesis profiles, allowed skips."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from powerinfer.engine.offload import devices

REPOSITORY = Path(__file__).resolve().parent.parent

# Why a test may skip in CI. A skip for any other reason fails a run with --fail-on-unlisted-skip.
ALLOWED_SKIPS = (
    r"this CPU has no \S+ kernels",
    r"numpy rounds cosines differently here",
    r"only glibc's allocator is told",
    r"llama_cpp is not installed",
    r"torch is not installed",
    r"triton is not installed",
    r"transformers is not installed",
    r"lm_eval is not installed",
    r"ray is (not installed|installed here)",
    r"accelerate is not installed",
    r"playwright is not installed",
    r"chromium is not installed",
    r"safetensors is not installed",
    r"mypy is not installed",
    r"(openai|anthropic|schemathesis) is not installed",
    r"needs CUDA",
    r"kernels are compiled here",
    r"development data not found",
    r"memory cannot be limited here",
)

settings.register_profile("quick", max_examples=15, deadline=None)
settings.register_profile(
    "ci", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", max_examples=1000, deadline=None)
# scripts/mutate runs the tests thousands of times: always the same few examples, and none made
# smaller where they fail.
settings.register_profile(
    "mutation",
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "quick")
)


def _hear_signals() -> None:
    """Undo what nohup and shells in the background leave to their programs: ignored signals."""
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


_hear_signals()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which CI enforces the list of skips."""
    parser.addoption(
        "--fail-on-unlisted-skip",
        action="store_true",
        help="fail if a test skips for a reason that tests/conftest.py does not list",
    )


_unlisted: list[str] = []


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Remember a skip whose reason is not in ALLOWED_SKIPS."""
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    # Path, line and reason: a tuple, or a list where the report came from another process.
    found = report.longrepr
    reason = str(found[2] if isinstance(found, tuple | list) else found)
    if not any(re.search(allowed, reason) for allowed in ALLOWED_SKIPS):
        _unlisted.append(f"{report.nodeid}: {reason}")


# With several workers these two are called in the process that prints, for the reports of all.
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Look at the skips of tests."""
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Look at the skips of whole modules."""
    _note_skip(report)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn unlisted skips into a failure where asked."""
    if session.config.getoption("--fail-on-unlisted-skip") and _unlisted:
        for line in _unlisted:
            print(f"unlisted skip: {line}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what properties drew and recorded as `drawn`, in a run that succeeded too."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            drawn = [str(value) for name, value in report.user_properties if name == "drawn"]
            if drawn:
                terminalreporter.section(f"{len(drawn)} examples of {report.nodeid}")
                terminalreporter.line("; ".join(drawn))


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder of the tests' own: calibrations of the user's models must not matter."""
    folder = tmp_path_factory.mktemp("cache")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def _any_width() -> None:
    """Tables are as wide as they are, whatever the terminal that runs the tests exports."""
    os.environ.pop("COLUMNS", None)


@pytest.fixture(scope="session", autouse=True)
def _cpu_by_default() -> Iterator[None]:
    """Models that ask for no device run on the CPU, on machines with a GPU too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "has_driver", lambda: False)
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of development data (`POWERINFER_TEST_DATA`); skips where it is absent."""
    path = Path(os.environ.get("POWERINFER_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"development data not found at {path}")
    return path


@pytest.fixture(scope="session")
def stories260k(data_dir: Path) -> Path:
    """A real trained model of 260 thousand parameters, as F32 GGUF."""
    return data_dir / "models" / "stories260K" / "stories260K-f32.gguf"
