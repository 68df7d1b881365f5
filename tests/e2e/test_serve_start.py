"""How a server starts: the port before the model, and mistakes in one line."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from patience import PATIENCE_S
from powerinfer.serve.lifecycle import bind
from serving import serving

PROGRAM = (sys.executable, "-m", "powerinfer", "serve")
FAKE = (sys.executable, str(Path(__file__).parent.parent / "support" / "fake_server.py"))


def fails(*arguments: str) -> list[str]:
    """Lines on stderr of a server that cannot start."""
    done = subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()


@pytest.mark.slow
def test_a_model_that_is_missing_or_damaged(tmp_path: Path) -> None:
    lines = fails("--port", "0", "-m", str(tmp_path / "none.gguf"))
    assert [line for line in lines if line.startswith("error: ")] == lines[-1:]
    assert "none.gguf" in lines[-1]
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 100)
    assert "damaged.gguf" in fails("--port", "0", "-m", str(damaged))[-1]


def test_too_much_memory() -> None:
    lines = fails("--port", "0", "-c", "100000000", "-np", "100")
    assert "memory" in lines[-1]
    assert "-c" in lines[-1]


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as listener:
        lines = fails("--port", str(listener.getsockname()[1]))
    assert len(lines) == 1
    assert "choose another address or port" in lines[0]


def test_the_port_opens_before_the_model_is_loaded() -> None:
    with serving(command=FAKE, load_s=1000) as server:
        health = server.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "loading"})
        answer = server.post("/v1/completions", {"prompt": "a"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "loading"
        assert server.get("/v1/models").status_code == 503
        assert server.get("/metrics").status_code == 200
        assert server.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [pytest.param(signal.SIGTERM, 0, marks=pytest.mark.thorough), (signal.SIGINT, 130)],
)
def test_signals_while_the_model_loads(number: int, code: int) -> None:
    with serving(command=FAKE, load_s=1000) as server:
        started = time.monotonic()
        assert server.stop(number) == code
        assert time.monotonic() - started < 20
        assert not [line for line in server.lines if "Traceback" in line]


@pytest.mark.slow
def test_a_warning_where_everybody_may_come() -> None:
    with serving("--host", "0.0.0.0", command=FAKE) as server:
        assert server.works()
        assert any(line.startswith("warning: anyone who reaches") for line in server.lines)
    with serving("--host", "0.0.0.0", "--api-key", "secret", command=FAKE) as server:
        assert server.post("/v1/completions", {"prompt": "a"}).status_code == 401
        headers = {"authorization": "Bearer secret"}
        answer = server.post("/v1/completions", {"prompt": "a"}, headers=headers)
        assert answer.status_code == 200
        assert not any("warning" in line or "secret" in line for line in server.lines)


@pytest.mark.slow
def test_a_script_may_stand_in_for_llama_server(tmp_path: Path) -> None:
    script = tmp_path / "llama-server"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m powerinfer serve "$@"\n')
    script.chmod(0o755)
    flags = ("-ngl", "99", "-np", "2", "-cb", "-fa", "--ctx-size", "128", "--mlock", "--no-mmap")
    more = ("-b", "512", "-ub", "64", "--jinja", "--metrics", "--slots", "-t", "1", "-to", "9")
    with serving(*flags, *more, command=(str(script),)) as server:
        assert server.works()
        assert server.figure("powerinfer_active_share") > 0
        assert server.figure("powerinfer_union_share") > 0
        assert any("-ngl, -cb, -fa" in line for line in server.lines)
        assert server.stop() == 0
