"""`scripts/real-models`: a folder on stdout, and why there is none as the exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from index_server import serving_index, settings_of_index
from patience import PATIENCE_S
from powerinfer.hub.catalogue import catalogue
from real_models import FILE

ROOT = Path(__file__).resolve().parents[2]
FAILED, NO_NETWORK = 1, 3

pytestmark = pytest.mark.slow


def fetch(folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a cache and an index of its own, which lacks the model."""
    with serving_index() as index:
        return subprocess.run(
            [str(ROOT / "scripts" / "real-models")],
            env=settings_of_index(index, folder) | {"VENV": sys.prefix} | settings,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


def place(folder: Path) -> Path:
    """Where the cache has the file; its folder is made."""
    package, _, path = catalogue()["smollm2"].source.removeprefix("pypi:").partition("/")
    placed = folder / "cache/powerinfer/pypi" / package.replace("==", "/") / path
    placed.parent.mkdir(parents=True)
    return placed


def test_a_file_that_is_there_is_not_fetched(smollm2: Path, tmp_path: Path) -> None:
    placed = place(tmp_path)
    placed.symlink_to(smollm2)
    done = fetch(tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{placed.parent}\n"


def test_another_file_is_refused(tmp_path: Path) -> None:
    placed = place(tmp_path)
    placed.write_bytes(b"GGUF")
    done = fetch(tmp_path)
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert f"{FILE} is not the file that was fetched" in done.stderr.splitlines()[-1]


def test_an_index_without_the_package_is_a_failure(tmp_path: Path) -> None:
    done = fetch(tmp_path)
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert "no wheel of such a package" in done.stderr


@pytest.mark.parametrize("more", ["", "an index that answers"])
def test_the_network_is_absent_if_no_index_answers(more: str, tmp_path: Path) -> None:
    silent = "http://127.0.0.1:1/simple"
    with serving_index() as other:
        extra = {"PIP_EXTRA_INDEX_URL": f"{other.endpoint}/simple"} if more else {}
        done = fetch(tmp_path, PIP_INDEX_URL=silent, **extra)
    assert (done.returncode, done.stdout) == (FAILED if more else NO_NETWORK, "")
    assert ("the network is absent" in done.stderr) is not bool(more)
