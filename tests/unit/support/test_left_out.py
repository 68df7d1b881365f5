"""What a test run leaves out is counted by reason, and refused where asked."""

import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).resolve().parents[2] / "support"
TESTS = """
import pytest

@pytest.mark.needs("no_such_library")
@pytest.mark.parametrize("x", [1, 2])
def test_needing(x): assert False

@pytest.mark.slow
def test_slow(): assert False

@pytest.mark.thorough
def test_thorough(): assert False

def test_skipping(): pytest.skip("the moon is full")

def test_client(): pytest.skip("ollama is not installed")

def test_data(): pytest.skip("development data not found at /some/where")

def test_real(): pytest.skip("POWERINFER_REAL_MODELS has no model.gguf")

@pytest.mark.parametrize("a", range(3))
@pytest.mark.parametrize("b", range(3))
@pytest.mark.parametrize("c", range(3))
def test_product(a, b, c): pass
"""


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a run of the tests above with both plug-ins."""
    (folder / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["-p", "left_out", "-p", "selection", "--rootdir", str(folder), *arguments]
    # Those that are installed take a second to import.
    command += ["-p", "xdist.plugin", "-p", "xdist.looponfail"]
    done = subprocess.run(
        [*command, str(folder / "test_some.py")],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PYTHONPATH": f"{SUPPORT}:{':'.join(sys.path)}",
            "PATH": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [[], pytest.param(["-n", "2"], marks=pytest.mark.slow)])
def test_everything_is_counted_once(workers: list[str], tmp_path: Path) -> None:
    code, output = run(tmp_path, *workers)
    assert code == 0, output
    assert "left out: 2 tests: no_such_library is not installed" in output
    assert "left out: 1 tests: the moon is full" in output
    assert "left out: 1 tests: development data not found" in output
    assert "scripts/test --slow runs 1 more tests, as CI does" in output
    passed = int(output.rpartition(" passed")[0].split()[-1])
    assert 9 <= passed < 15, "pairs of three values, not all 27 combinations"
    more = 27 - passed + 2
    assert f"scripts/test --all runs {more} more tests and combinations of parameters" in output


def test_slow_tests_run_where_asked(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--slow")
    assert code == 1
    assert "test_slow" in output
    assert "test_thorough" not in output


@pytest.mark.slow
def test_all_runs_everything(tmp_path: Path) -> None:
    code, output = run(tmp_path, "--all")
    assert code == 1
    assert "27 passed" in output
    assert "test_slow" in output
    assert "test_thorough" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ("--fail-on-unlisted-skip", set()),
        (
            "--fail-on-missing",
            {"development data not found", "POWERINFER_REAL_MODELS has no model.gguf"},
        ),
        ("--fail-on-missing --no-network", {"development data not found"}),
        (
            "--fail-on-any-skip",
            {
                "development data not found",
                "POWERINFER_REAL_MODELS has no model.gguf",
                "ollama is not installed",
            },
        ),
    ],
)
def test_reasons_that_are_not_listed_fail_a_run(
    options: str, refused: set[str], tmp_path: Path
) -> None:
    code, output = run(tmp_path, *options.split())
    assert code == 1
    marked = "left out, which is an error here: "
    lines = {line.removeprefix(marked) for line in output.splitlines() if line.startswith(marked)}
    assert lines == {"the moon is full", "no_such_library is not installed", *refused}
