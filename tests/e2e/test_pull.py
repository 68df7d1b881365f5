"""Downloads in processes of their own: killed, interrupted, two at once, limits, no network."""

import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub_server import COMMIT, Hub, Repository, serving, settings_of
from patience import PATIENCE_S

PROGRAM = (sys.executable, "-m", "powerinfer")
MODEL = random.Random(1).randbytes(1 << 20)
STALLS_AFTER = 1 << 18


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as found:
        found.repositories["org/one"] = Repository({"m-Q4_0.gguf": MODEL})
        yield found


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "powerinfer" / "hub" / "org" / "one" / COMMIT


def pull(
    hub: Hub, tmp_path: Path, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *(arguments or ("pull", "hf:org/one"))],
        env=settings_of(hub, tmp_path) | settings,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def stop_in_the_middle(
    hub: Hub, tmp_path: Path, stop: Callable[["subprocess.Popen[str]"], None]
) -> tuple[int, str]:
    """Begin a download that stalls, and stop it; exit code and stderr."""
    hub.stalls_after = STALLS_AFTER
    command = [*PROGRAM, "pull", "hf:org/one"]
    with subprocess.Popen(
        command, env=settings_of(hub, tmp_path), stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + PATIENCE_S
        while not _has_arrived(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.02)
        stop(process)
        _, errors = process.communicate(timeout=PATIENCE_S)
    hub.stalls_after = None
    hub.go_on.set()
    return process.returncode, errors


def _has_arrived(tmp_path: Path) -> bool:
    parts = list(folder_of(tmp_path).glob(".*.incomplete"))
    return bool(parts) and parts[0].stat().st_size >= STALLS_AFTER


def assert_resumes(hub: Hub, tmp_path: Path) -> None:
    """The next pull fetches what is missing, and nothing else."""
    path = folder_of(tmp_path) / "m-Q4_0.gguf"
    assert not path.exists()
    hub.asked.clear()
    done = pull(hub, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{path}\n"
    assert path.read_bytes() == MODEL
    assert [each.range for each in hub.requests_of_files()] == [
        f"bytes={STALLS_AFTER}-{len(MODEL) - 1}"
    ]
    assert list(path.parent.iterdir()) == [path]


def test_a_killed_download_goes_on_with_the_missing_bytes(hub: Hub, tmp_path: Path) -> None:
    code, _ = stop_in_the_middle(hub, tmp_path, lambda process: process.kill())
    assert code == -signal.SIGKILL
    assert_resumes(hub, tmp_path)


@pytest.mark.parametrize(
    ("number", "expected"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_an_interrupted_download_goes_on(
    hub: Hub, tmp_path: Path, number: signal.Signals, expected: int
) -> None:
    code, errors = stop_in_the_middle(hub, tmp_path, lambda process: process.send_signal(number))
    assert code == expected
    assert "Traceback" not in errors
    assert_resumes(hub, tmp_path)


@pytest.mark.slow
def test_two_processes_fetch_a_file_once(hub: Hub, tmp_path: Path) -> None:
    hub.stalls_after = STALLS_AFTER
    command = [*PROGRAM, "pull", "hf:org/one"]
    processes = [
        subprocess.Popen(
            command,
            env=settings_of(hub, tmp_path),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    deadline = time.monotonic() + PATIENCE_S
    # Both have the listing; one has the lock.
    while len(hub.asked) < 4 and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    hub.go_on.set()
    results = [process.communicate(timeout=PATIENCE_S) for process in processes]
    path = folder_of(tmp_path) / "m-Q4_0.gguf"
    assert [output for output, _ in results] == [f"{path}\n"] * 2, results
    assert path.read_bytes() == MODEL
    assert len(hub.requests_of_files()) == 1


@pytest.mark.usefixtures("unmeasured_programs")
@pytest.mark.slow
def test_a_disk_that_fills_is_one_line(hub: Hub, tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (STALLS_AFTER, STALLS_AFTER))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    done = subprocess.run(
        [*PROGRAM, "pull", "hf:org/one"],
        env=settings_of(hub, tmp_path) | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "cannot write: File too large; 1.0 MiB are needed there" in done.stderr
    assert_resumes(hub, tmp_path)


@pytest.mark.slow
def test_the_settings_of_the_environment(hub: Hub, tmp_path: Path) -> None:
    refused = pull(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert refused.returncode == 2
    assert refused.stderr == (
        "error: hf:org/one: it is not in the caches of this machine; and HF_HUB_OFFLINE forbids to "
        "fetch it\n"
    )
    assert hub.asked == []
    hub.repositories["org/one"].is_gated = True
    gated = pull(hub, tmp_path)
    assert gated.returncode == 2
    assert "set HF_TOKEN to a token of your account" in gated.stderr
    assert pull(hub, tmp_path, HF_TOKEN="hf_x").returncode == 0
    tokens = {(each.host, each.headers.get("authorization")) for each in hub.asked[-2:]}
    assert tokens == {("hub", "Bearer hf_x"), ("cdn", None)}
    hub.asked.clear()
    assert pull(hub, tmp_path, HF_HUB_OFFLINE="1").returncode == 0
    assert hub.asked == []


def test_no_network_is_one_line(hub: Hub, tmp_path: Path) -> None:
    done = pull(hub, tmp_path, HF_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "http://127.0.0.1:1 cannot be reached" in done.stderr


def test_a_model_that_is_here_imports_no_http_client(hub: Hub, tmp_path: Path) -> None:
    assert pull(hub, tmp_path).returncode == 0
    code = (
        "import sys\n"
        "from powerinfer.hub.fetch import fetch_model\n"
        "fetch_model('hf:org/one')\n"
        "found = {name.split('.')[0] for name in sys.modules}\n"
        "print(sorted(found & {'httpx', 'httpx2', 'huggingface_hub'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=settings_of(hub, tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout == "[]\n"


def test_a_local_path_imports_nothing_for_the_hub(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from powerinfer.cli.main import main\n"
        "main(['run', '-p', 'a', '-n', '1'], standalone_mode=False)\n"
        "found = {name.split('.')[0] for name in sys.modules}\n"
        "hub = {name for name in sys.modules if name.startswith('powerinfer.hub')}\n"
        "print(sorted(found & {'httpx', 'httpx2', 'huggingface_hub'}), sorted(hub),"
        " file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    assert done.stderr.splitlines()[-1] == "[] ['powerinfer.hub', 'powerinfer.hub.names']"
