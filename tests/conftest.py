"""Fixtures of all tests, profiles of hypothesis, plug-ins that choose tests and report skips."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from powerinfer.offload import devices

REPOSITORY = Path(__file__).resolve().parent.parent

pytest_plugins = ["selection", "left_out", "measured", "quick_interpreter"]

# Always the same examples: a run that draws them anew is `scripts/test-random`.
settings.register_profile("quick", max_examples=15, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "ci",
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("random", max_examples=300, deadline=None, print_blob=True)
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


def pytest_collection_finish() -> None:
    """Keep all modules and tests out of the collector: a million objects, a second each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let them be freed at the end, or nanobind says that objects leaked."""
    gc.unfreeze()


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


@pytest.fixture(autouse=True)
def _tracing_goes_on() -> Iterator[None]:
    """A test that ends tracing would hide all later ones of its worker from coverage."""
    before = sys.gettrace()
    yield
    assert sys.gettrace() is before, "the test did not restore sys.settrace"


@pytest.fixture(scope="module")
def little_to_collect() -> None:
    """For tests that collect often: what earlier ones left and imported is not looked at again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def unmeasured_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps coverage out of programs that are interrupted, or that must not write a file."""
    monkeypatch.delenv("COVERAGE_PROCESS_CONFIG", raising=False)


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
