"""The command line with the model of the package: its text, Ctrl-C, two processes at once."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO

from gpu_check.findings import Finding, Setting, verdict_of
from gpu_check.planted_models import PlantedModel

__all__ = ["check_programs"]

_TEXT = ("-p", "Once upon a time", "--temp", "0", "--ignore-eos")
_GPU = ("--device", "cuda", "--vram-budget", "2", "--solver", "greedy")
# Far above what anything here takes; only a hang reaches it.
_PATIENCE_S = 80
# Interpreted kernels take their time.
_PATIENT_S = 600
_INTERRUPTED = 130


def check_programs(planted: PlantedModel | None, setting: Setting) -> Iterator[Finding]:
    """Each program is a process of its own, as a user starts it.

    Args:
        planted: made already; None for the model of the package.
        setting: where to run it.
    """
    patience = _PATIENCE_S if setting.is_cuda else _PATIENT_S
    num_tokens = 64 if setting.is_cuda else 2
    model = () if planted is None else ("-m", str(planted.path(setting.folder)), "-c", "64")
    run = ("run", *model, *_TEXT, "-t", str(min(4, setting.threads)))
    length = ("-n", str(num_tokens), "--json")
    alone, _ = _ids(_ended(_started(*run, *length, "--device", "cpu"), patience))
    on_gpu, seen = _ids(_ended(_started(*run, *length, *_GPU), patience))
    yield _same(f"powerinfer run, {num_tokens} tokens", alone, on_gpu, seen)
    both = [_started(*run, *length, *_GPU) for _ in range(2)]
    for number, process in enumerate(both, 1):
        ids, seen = _ids(_ended(process, patience))
        yield _same(f"two processes at once, number {number}", alone, ids, seen)
    yield _interrupted(run, patience)


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def _started(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "powerinfer", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )


def _ended(process: subprocess.Popen[str], patience: int) -> tuple[int, str, str]:
    """Exit code and what was written; one that does not end is killed."""
    try:
        out, errors = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        process.kill()
        out, errors = process.communicate()
        errors += f"\ndid not end within {patience} s"
    if process.returncode:
        print(errors, flush=True)
    return process.returncode, out, errors


def _ids(ended: tuple[int, str, str]) -> tuple[list[int], str]:
    """Token ids that were written, and where; or nothing, and what went wrong."""
    code, out, errors = ended
    if code:
        last = errors.strip().splitlines()[-1:] or ["no message"]
        return [], f"exit code {code}: {last[0]}"
    report = json.loads(out)
    return list(report["token_ids"]), f"{report['device']}, {report.get('handoff')}"


def _same(what: str, expected: list[int], got: list[int], seen: str) -> Finding:
    if got and got == expected:
        return Finding(what, verdict_of(is_right=True), f"the CPU's tokens ({seen})")
    agreeing = next(
        (n for n, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]),
        min(len(expected), len(got)),
    )
    text = f"only the first {agreeing} of {len(expected)} tokens are the CPU's ({seen})"
    return Finding(what, verdict_of(is_right=False), text, {"agreeing": agreeing})


def _interrupted(run: tuple[str, ...], patience: int) -> Finding:
    """Ctrl-C while a text without end is written: exit code 130, and no traceback."""
    command = [sys.executable, "-m", "powerinfer", *run, *_GPU, "-n", "-1", "--context-shift"]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(),
            # A program started in the background may have inherited that Ctrl-C is ignored.
            preexec_fn=_obey_interrupts,
        )
        had_text = _wait_for_text(process, time.monotonic() + patience)
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        code = _ended_by_signal(process)
        seconds = time.monotonic() - started
        told = _all_of(errors)
    is_right = had_text and code == _INTERRUPTED and "Traceback" not in told
    text = f"exit code {code} after {seconds:.1f} s"
    if not is_right:
        print(told, flush=True)
        text += ", with a traceback" if "Traceback" in told else ""
        text += "" if had_text else ", before any text came"
    return Finding("Ctrl-C while writing", verdict_of(is_right), text, {"seconds": seconds})


def _obey_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _wait_for_text(process: "subprocess.Popen[bytes]", ends: float) -> bool:
    """Whether some of the text came before the program ended or the time was over."""
    pipe = process.stdout
    if pipe is None:
        return False
    os.set_blocking(pipe.fileno(), False)
    read = b""
    while len(read.strip()) < len("Once upon a time") + 1 and time.monotonic() < ends:
        piece = pipe.read()
        if piece:
            read += piece
        elif process.poll() is not None:
            return False
        else:
            time.sleep(0.05)
    return bool(read)


def _ended_by_signal(process: "subprocess.Popen[bytes]") -> int:
    try:
        return process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _all_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()
