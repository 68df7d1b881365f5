"""Signals that end a command while it reads, computes or writes; texts from pipes."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patience import PATIENCE_S
from powerinfer.gguf import open_gguf
from tiny_models import TINY_MODELS, wide, write_model

pytestmark = pytest.mark.usefixtures("unmeasured_programs")
ENDLESS = ("-p", "a", "-n", "-1", "--context-shift", "--ignore-eos")

# Runs the program with a writer that stops after its first piece.
_SLOWLY = textwrap.dedent("""
    import runpy, signal, sys, time
    import powerinfer.gguf.writer as writer

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_{disposition})
    real = writer._write_data

    def slow(file, entry):
        real(file, entry)
        file.flush()
        print("begun", file=sys.stderr, flush=True)
        sys.stdin.read(1)

    writer._write_data = slow
    sys.argv[:] = ["powerinfer", *{arguments!r}]
    runpy.run_module("powerinfer", run_name="__main__", alter_sys=True)
""")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    recipe = wide(TINY_MODELS["llama-relu"])
    (tmp_path / "models").mkdir()
    return write_model(tmp_path / "models" / "m.gguf", recipe)


@contextmanager
def _writing(
    *arguments: str | Path, disposition: str = "DFL"
) -> Iterator["subprocess.Popen[bytes]"]:
    """A command that has begun to write a model."""
    code = _SLOWLY.format(arguments=[str(each) for each in arguments], disposition=disposition)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stderr is not None
            while (line := process.stderr.readline()) != b"begun\n":
                assert line, "it ended before it wrote"
            yield process
        finally:
            process.kill()


def _parts(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.endswith(".part")]


# SIGHUP is met below.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.thorough)],
)
def test_signals_that_can_be_met_leave_nothing(
    model: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    out = tmp_path / "packed.gguf"
    before = model.read_bytes()
    calibrate = ("calibrate", "-m", model, "--write", "--tokens", "128")
    for arguments in (("pack", model, "-o", out), calibrate):
        with _writing(*arguments) as process:
            assert len(_parts(tmp_path) + _parts(model.parent)) == 1
            process.send_signal(number)
            _, stderr = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == code
            assert b"Traceback" not in stderr
        assert _parts(tmp_path) == _parts(model.parent) == []
        assert not out.exists()
        assert model.read_bytes() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_json_reports_what_a_signal_left(model: Path, number: signal.Signals, code: int) -> None:
    """The signal arrives in the fifth step, as Ctrl-C does in the unit test."""
    program = textwrap.dedent(f"""
        import runpy, signal, sys
        from powerinfer.engine.engine import Engine

        real, count = Engine.run_step, 0

        def run_step(engine):
            global count
            count += 1
            if count == 5:
                signal.raise_signal({int(number)})
            real(engine)

        Engine.run_step = run_step
        sys.argv[:] = ["powerinfer", "run", "-m", {str(model)!r}, *{ENDLESS!r}, "--json"]
        runpy.run_module("powerinfer", run_name="__main__", alter_sys=True)
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == code, done.stderr
    report = json.loads(done.stdout)
    assert report["finish_reason"] == "cancelled"
    assert len(report["token_ids"]) == 4


def test_several_at_once_leave_nothing(model: Path, tmp_path: Path) -> None:
    """As from a terminal that closes: its shell and the system send one each."""
    with _writing("pack", model, "-o", tmp_path / "packed.gguf") as process:
        for _ in range(3):
            process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode in (129, 143)
    assert _parts(tmp_path) == []


def test_a_signal_that_python_cannot_raise_ends_the_program_too() -> None:
    """Inside a `__del__`, whose errors are printed and forgotten."""
    code = textwrap.dedent("""
        import os, signal, sys, time
        from powerinfer.cli import main as cli, signals

        class Deleted:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)
                for _ in range(1000):
                    pass

        def invoke(*_):
            for _ in range(2):
                Deleted()
            time.sleep(600)

        cli.click.Group.invoke = invoke
        signals.terminate_in_order()
        cli.main(["run"])
    """)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 143
    assert done.stderr == b""


def test_after_kill_the_next_run_removes_what_was_left(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed.gguf"
    with _writing("pack", model, "-o", out) as process:
        process.kill()
        process.wait(PATIENCE_S)
    assert len(_parts(tmp_path)) == 1
    done = subprocess.run(
        [sys.executable, "-m", "powerinfer", "pack", model, "-o", tmp_path / "other.gguf"],
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0
    assert _parts(tmp_path) == []
    assert open_gguf(tmp_path / "other.gguf").tensors


def test_nohup_keeps_a_command_going(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed.gguf"
    with _writing("pack", model, "-o", out, disposition="IGN") as process:
        process.send_signal(signal.SIGHUP)
        # More than it reads while it writes.
        process.communicate(bytes(100), timeout=PATIENCE_S)
        assert process.returncode == 0
    assert open_gguf(out).tensors


@pytest.mark.parametrize(
    "command",
    ["pack", *(pytest.param(name, marks=pytest.mark.slow) for name in ("calibrate", "plan"))],
)
def test_a_full_disk_leaves_nothing_half_written(model: Path, tmp_path: Path, command: str) -> None:
    """The limit on the size of files stands for the end of the disk."""
    out = tmp_path / "new" / "file"
    out.parent.mkdir()
    arguments = {
        "pack": ["pack", model, "-o", out],
        "calibrate": ["calibrate", "-m", model, "--tokens", "128", "--write", "-o", out],
        "plan": ["plan", "-m", model, "--vram-budget", "1", "-o", out],
    }[command]
    limited = f"ulimit -f 0; exec {sys.executable} -m powerinfer " + " ".join(map(str, arguments))
    done = subprocess.run(
        ["sh", "-c", limited],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.decode().splitlines() if line.startswith("error: ")]
    assert f"{out}: cannot write" in line
    assert "File too large" in line
    assert list(out.parent.iterdir()) == []


def test_sigterm_ends_a_run_quietly(model: Path) -> None:
    command = [sys.executable, "-m", "powerinfer", "run", "-m", str(model), *ENDLESS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(8)
        process.terminate()
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 143
    assert b"Traceback" not in stderr
    assert b"Exception ignored" not in stderr


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_terminal_that_closes_ends_what_runs_on_it(model: Path, command: str) -> None:
    """The system sends SIGHUP, and nothing can be written any more."""
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)
    flags = " ".join(ENDLESS) if command == "run" else ""
    # A session without a terminal takes the first one that it opens.
    words = f"exec 0<>{name} 1>&0 2>&0; exec {sys.executable} -m powerinfer {command} -m {model}"
    with subprocess.Popen(["sh", "-c", f"{words} {flags}"], start_new_session=True) as process:
        try:
            shown = b""
            while b"context" not in shown:
                assert select.select([ours], [], [], PATIENCE_S)[0], shown
                shown += os.read(ours, 1024)
            # Ours too, which was open until the program had opened it.
            os.close(theirs)
            os.close(ours)
            assert process.wait(PATIENCE_S) == 129
        finally:
            process.kill()


@pytest.mark.parametrize(
    "command",
    [
        ("perplexity", "-c", "16", "-f"),
        pytest.param(
            ("bench", "--quality", "-c", "16", "--decode", "1", "--repeats", "1", "-f"),
            marks=pytest.mark.slow,
            id="bench",
        ),
        pytest.param(("calibrate", "--json", "-f"), marks=pytest.mark.slow, id="calibrate"),
        ("run", "-n", "1", "-f"),
    ],
    ids=lambda command: command[0],
)
def test_texts_come_from_any_pipe(model: Path, command: tuple[str, ...]) -> None:
    """From `<(...)` and `/dev/stdin`, as shells make them."""
    text = b"the quick brown fox jumps over the lazy dog. " * (1 if command[0] == "run" else 4)
    program = [sys.executable, "-m", "powerinfer", *command]
    substituted = f"exec {' '.join(program)} /dev/fd/3 -m {model} 3<&0 </dev/null"
    for words in ([*program, "/dev/stdin", "-m", str(model)], ["sh", "-c", substituted]):
        done = subprocess.run(
            words, input=text, capture_output=True, timeout=PATIENCE_S, check=False
        )
        assert done.returncode == 0, done.stderr
    if command[0] == "calibrate":
        assert json.loads(done.stdout)["text"] == "stdin"


def test_ctrl_c_ends_the_wait_for_a_pipe(model: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "powerinfer", "perplexity", "-m", str(model)]
    command += ["-f", str(pipe)]
    # Opening it for writing waits for the program to open it.
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process, pipe.open("wb"):
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert b"Traceback" not in stderr
