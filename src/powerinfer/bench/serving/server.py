"""Server processes under test."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from powerinfer.errors import PowerInferError

__all__ = [
    "Server",
    "missing_instruction_sets",
    "our_command",
    "peer_command",
    "running",
    "system_info",
]

# Linux CPU flags and llama.cpp's names for them.
_NAMES = {
    "avx2": "AVX2",
    "fma": "FMA",
    "f16c": "F16C",
    "avx512f": "AVX512",
    "avx512vbmi": "AVX512_VBMI",
    "avx512_vnni": "AVX512_VNNI",
    "avx512_bf16": "AVX512_BF16",
    "amx_int8": "AMX_INT8",
}

_START_S = 300.0
_STOP_S = 20.0
_SYSTEM_INFO = re.compile(r"^.*system_info: *(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers, with its output so far."""

    address: str
    log: str


def our_command(
    model: Path, parallel: int, context: int, threads: int, options: tuple[str, ...]
) -> list[str]:
    """Command of `powerinfer serve` without a port."""
    command = [sys.executable, "-m", "powerinfer", "serve", "-t", str(threads)]
    command += ["--parallel", str(parallel), "-c", str(context), *options]
    return [*command, "-m", str(model)]


def peer_command(
    program: Path, model: Path, parallel: int, context: int, threads: int
) -> list[str]:
    """Command of `llama-server` without a port; arguments as for `our_command`."""
    command = [str(program), "-m", str(model), "-t", str(threads), "-np", str(parallel)]
    return [*command, "-c", str(parallel * context)]


@contextlib.contextmanager
def running(command: list[str]) -> Iterator[Server]:
    """Start a server on a free local port, wait until it is ready, and stop it in the end."""
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        except OSError as error:
            raise PowerInferError(f"cannot start {command[0]}: {error.strerror}") from error
        try:
            _wait_until_ready(process, address, log)
            yield Server(address, _text_of(log))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def system_info(server: Server) -> str:
    """Build info printed by a peer (instruction sets); empty if missing."""
    found = _SYSTEM_INFO.search(server.log)
    return found.group(1).strip() if found else ""


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], address: str, log: IO[bytes]) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PowerInferError(f"{process.args!r} ended at once: {_text_of(log)[-500:].strip()}")
        with contextlib.suppress(httpx.HTTPError):
            health = httpx.get(f"{address}/health", timeout=5, trust_env=False)
            if health.status_code == httpx.codes.OK:
                return
        time.sleep(0.2)
    raise PowerInferError(f"{process.args!r} was not ready within {_START_S:.0f} s")


def _text_of(log: IO[bytes]) -> str:
    # The process shares the file offset, so read without moving it.
    import os

    size = os.fstat(log.fileno()).st_size
    return os.pread(log.fileno(), size, 0).decode(errors="replace")


def missing_instruction_sets(system_info: str, cpuinfo: Path = Path("/proc/cpuinfo")) -> list[str]:
    """Instruction sets that the processor has but the program lacks; if any, comparisons are void.

    Args:
        system_info: printed by llama-server, `AVX2 = 1 | FMA = 1 | ...`.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf8").splitlines()
    except OSError:
        return []
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    parts = [part.split("=") for part in system_info.replace(":", "|").split("|")]
    built = {part[0].strip() for part in parts if len(part) == 2 and part[1].strip() == "1"}
    return [name for flag, name in _NAMES.items() if flag in flags and name not in built]
