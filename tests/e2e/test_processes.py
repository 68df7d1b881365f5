"""The installed program as users run it: processes, pipes, signals."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE_S
from powerinfer.gguf import open_gguf, write_gguf
from screen import Screen
from tiny_models import TINY_MODELS, TinyModel, write_model

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAM = (sys.executable, "-m", "powerinfer")


def run(
    *arguments: str | Path, stdin: bytes = b"", **options: Any
) -> subprocess.CompletedProcess[bytes]:
    command = [*PROGRAM, *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, timeout=PATIENCE_S, check=False, **options
    )


@contextmanager
def endless_run(model: Path, stderr: int) -> Iterator[subprocess.Popen[bytes]]:
    """A run that does not end on its own; killed when its time limit is over."""
    command = [*PROGRAM, "run", "-m", str(model), "-p", "a", "-n", "-1", "--context-shift"]
    command += ["--ignore-eos"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr) as process:
        timer = threading.Timer(PATIENCE_S, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


@pytest.fixture(autouse=True)
def default_signals() -> Iterator[None]:
    """Programs inherit ignored signals; a test run in the background ignores Ctrl-C."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TINY_MODELS["llama"])


@pytest.fixture(scope="module")
def card_text(stories260k: Path) -> str:
    card = (stories260k.parent / "stories260K.md").read_text(encoding="utf8")
    return card.split("-t 0.0\n", 1)[1].split("\n```", 1)[0]


def test_greedy_text_is_the_model_cards(stories260k: Path, card_text: str) -> None:
    done = run("run", "-m", stories260k, "-p", "", "-n", "256", "--temp", "0")
    assert done.returncode == 0
    assert done.stdout.decode() == card_text


@pytest.mark.slow
def test_thread_count_changes_no_token(stories260k: Path, card_text: str) -> None:
    for threads in ("1", "3"):
        done = run(*("run", "-m", stories260k, "-p", "", "-n", "256", "--temp", "0", "-t", threads))
        assert done.stdout.decode() == card_text


def test_a_folder_names_its_only_model(stories260k: Path) -> None:
    done = run("run", "-m", stories260k.parent, "-p", "Once", "-n", "3", "--json")
    assert json.loads(done.stdout)["decode_tokens"] == 3


@pytest.mark.slow
def test_a_seed_gives_the_same_text_in_another_process(stories260k: Path) -> None:
    texts = {
        run("run", "-m", stories260k, "-p", "Once", "-n", "40", "--seed", seed).stdout
        for seed in ("5", "5", "6")
    }
    assert len(texts) == 2


def test_stop_text_ends_a_story(stories260k: Path, card_text: str) -> None:
    done = run(
        *("run", "-m", stories260k, "-p", "", "-n", "256", "--temp", "0"),
        *("--stop", "zzz", "--stop", "big, red"),
    )
    assert done.stdout.decode() == card_text.split("big, red")[0]


def test_context_shift_goes_on_beyond_the_context(stories260k: Path) -> None:
    arguments = ("run", "-m", stories260k, "-p", "Once upon a time", "-n", "150", "-c", "64")
    done = run(*arguments, "--seed", "1", "--ignore-eos")
    assert done.returncode == 0
    assert b"context of 64 tokens is full" in done.stderr
    shifted = run(*arguments, "--seed", "1", "--ignore-eos", "--context-shift", "--json")
    assert json.loads(shifted.stdout)["decode_tokens"] == 150


def test_quantized_cache_runs(tmp_path: Path) -> None:
    path = write_model(tmp_path / "q8.gguf", TinyModel("llama", head_dim=32))
    done = run("run", "-m", path, "-p", "abc", "-n", "4", "--kv-type", "q8_0", "--json")
    assert done.returncode == 0, done.stderr


def test_nan_weights_end_in_one_line(tmp_path: Path, tiny: Path) -> None:
    tensors = []
    for name, tensor in open_gguf(tiny).tensors.items():
        data = tensor.data.copy()
        if name == "blk.1.ffn_down.weight":
            data.view(np.float32)[:] = np.nan
        tensors.append((name, tensor.shape, tensor.format, data.tobytes()))
    write_gguf(tmp_path / "nan.gguf", open_gguf(tiny).metadata, tensors)
    done = run("run", "-m", tmp_path / "nan.gguf", "-p", "hello")
    assert done.returncode == 2
    last = done.stderr.decode().splitlines()[-1]
    assert last.startswith("error: ")
    assert "layer 1 (FFN)" in last


def test_reader_that_goes_away_ends_the_program_quietly(tiny: Path) -> None:
    with endless_run(tiny, subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        stderr = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 141
    assert "Traceback" not in stderr
    assert "Exception ignored" not in stderr
    assert "error" not in stderr


def test_closed_stdout_is_an_error(tiny: Path) -> None:
    command = " ".join([*PROGRAM, "run", "-m", str(tiny), "-p", "a", "-n", "1", ">&-"])
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 2
    assert done.stderr.decode().startswith("error: stdout is closed")


def test_closed_stderr_is_not_missed(tiny: Path) -> None:
    command = " ".join([*PROGRAM, "run", "-m", str(tiny), "-p", "abc", "-n", "0", "2>&-"])
    done = subprocess.run(
        ["sh", "-c", command], stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"abc")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.usefixtures("unmeasured_programs")
def test_full_disk_is_an_error(tiny: Path) -> None:
    command = [*PROGRAM, "run", "-m", str(tiny), "-p", "a", "-n", "1"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S
        )
    assert done.returncode == 2
    assert b"error: cannot write the output (stdout): No space left on device" in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_ctrl_c_ends_a_run_with_130_and_figures(tiny: Path) -> None:
    with endless_run(tiny, subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(8)
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        stderr = process.stderr.read().decode()
        assert process.wait(PATIENCE_S) == 130
    assert "decode" in stderr
    assert "Traceback" not in stderr


@pytest.mark.slow
def test_ctrl_c_ends_the_wait_for_a_pipe(tmp_path: Path) -> None:
    """A run that reads its prompt from a pipe waits for somebody to write into it."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [*PROGRAM, "run", "-f", str(pipe)]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr is not None
        assert process.stderr.read().strip() == b""


@pytest.mark.parametrize("module", ["powerinfer.cli.main", "click", "json", "numpy"])
@pytest.mark.usefixtures("unmeasured_programs")
def test_ctrl_c_while_starting_is_quiet(tiny: Path, module: str) -> None:
    """The signal arrives while `module` is imported; numpy comes after the command has begun."""
    code = f"""
import runpy, signal, sys

class Interrupting:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
sys.argv[:] = ["powerinfer", "run", "-m", {str(tiny)!r}, "-p", "a", "-n", "1"]
runpy.run_module("powerinfer", run_name="__main__", alter_sys=True)
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, b"", b"")


def test_the_installed_script_starts_as_the_module_does() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"powerinfer": "powerinfer.__main__:main"}


def test_no_prompt_on_a_terminal_is_an_error(tiny: Path) -> None:
    main_end, terminal = pty.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "run", "-m", str(tiny)],
            stdin=terminal,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(main_end)
        os.close(terminal)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: no prompt")


def test_pieces_arrive_while_the_text_is_made(tiny: Path) -> None:
    """The first piece is there long before the last: it was flushed, not left in a buffer."""
    with endless_run(tiny, subprocess.DEVNULL) as process:
        assert process.stdout is not None
        # This run never ends on its own, so what can be read was flushed.
        assert os.read(process.stdout.fileno(), 1) == b"a"
        assert os.read(process.stdout.fileno(), 1)


def test_chat_on_a_terminal(tiny: Path, tmp_path: Path) -> None:
    """Typing, a line continued with a backslash, Ctrl-C at the prompt, Ctrl-D to leave."""
    with Screen(tmp_path, "chat", "-m", str(tiny), "-n", "3", "--ignore-eos") as screen:
        screen.wait_for(">")
        screen.type(b"hello \\\rthere\r")
        screen.wait_for("cut")
        # The next prompt: before it the terminal would take the key for itself.
        screen.wait_for(">")
        screen.type(b"\x03")
        screen.wait_for("Ctrl-D or /exit leaves")
        screen.wait_for(">")
        screen.type(b"\x04")
        assert screen.exit_code() == 0
    history = tmp_path / "powerinfer" / "chat_history"
    assert history.read_text().splitlines()[-2:] == ["+hello ", "+there"]
    assert history.stat().st_mode & 0o077 == 0


@pytest.mark.usefixtures("unmeasured_programs")
def test_ctrl_c_stops_an_answer_and_keeps_the_chat(tiny: Path, tmp_path: Path) -> None:
    # A long context makes an answer that lasts until it is stopped.
    flags = ("-m", str(tiny), "-c", "100000", "--ignore-eos", "--kernels", "reference")
    with Screen(tmp_path, "chat", *flags) as screen:
        screen.wait_for(">")
        screen.type(b"hello\r")
        screen.wait_for_more(200)
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for("(stopped)")
        screen.wait_for(">")
        screen.type(b"/exit\r")
        assert screen.exit_code() == 0


def test_example_runs(tiny: Path) -> None:
    example = REPOSITORY / "examples" / "generate.py"
    done = subprocess.run(
        [sys.executable, str(example), str(tiny)],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_public_names_are_what_is_importable() -> None:
    code = (
        "import powerinfer, sys;"
        "assert 'numpy' not in sys.modules, 'importing the package is not cheap';"
        "names = {n: getattr(powerinfer, n) for n in powerinfer.__all__};"
        "assert sorted(dir(powerinfer)) == sorted(powerinfer.__all__);"
        "from powerinfer import *;"
        "assert all(globals()[n] is v for n, v in names.items());"
        "import types;"
        "public = {n for n, v in vars(powerinfer).items() if not n.startswith('_')"
        " and not isinstance(v, types.ModuleType)} - {'Any', 'TYPE_CHECKING'};"
        "assert public | {'__version__'} == set(powerinfer.__all__), public"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr


def test_the_embedded_model_needs_no_flag() -> None:
    arguments = ("run", "-p", "Once upon a time", "-n", "24", "--temp", "0", "--json")
    native = json.loads(run(*arguments).stdout)
    assert native["sparsity"] == "exact"
    assert native["active_share"] < 0.5
    assert len(native["text"].split()) > 8
    plain = json.loads(run(*arguments, "--kernels", "reference").stdout)
    assert plain["token_ids"] == native["token_ids"]
