"""Ways into the sandbox that work on the machine, and a search for processes left behind."""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest

from patience import PATIENCE_S
from powerinfer.errors import UnsupportedError
from powerinfer.orchestra.sandbox import ways
from powerinfer.orchestra.sandbox.child import Ended
from powerinfer.orchestra.sandbox.isolation import PROGRAM, run_isolated
from powerinfer.orchestra.sandbox.limits import Limits

__all__ = [
    "WAYS",
    "guards",
    "is_program_running",
    "need_sandbox",
    "need_way",
    "run_code",
    "wait_until",
]

WAYS: Mapping[str, ways.Way] = {
    "namespaces": ways.namespaces,
    # Also as root, though `ways` keeps it from root: the code here is ours.
    "bubblewrap": ways.bubblewrap,
}


def run_code(code: str, way: str, limits: Limits | None = None) -> Ended:
    """Run a program in the sandbox by one way."""
    allowed = {way: WAYS[way]}
    return asyncio.run(
        run_isolated(PROGRAM, code.encode(), limits or Limits(seconds=20), allowed=allowed)
    )


@cache
def _obstacle(way: str) -> str | None:
    try:
        run_code("", way)
    except (UnsupportedError, OSError) as error:
        return str(error)
    return None


def need_way(way: str) -> None:
    """Skip the test if a way does not work here."""
    if obstacle := _obstacle(way):
        pytest.skip(f"no sandbox by {way} here: {obstacle}")


def need_sandbox() -> None:
    """Skip the test if none of the ways works that programs use."""
    usable = [way for way in ways.ways() if _obstacle(way) is None]
    if not usable:
        pytest.skip(f"no sandbox by namespaces here: {_obstacle('namespaces')}")


def guards(seconds: float) -> list[int]:
    """Ids of processes of sandboxes with this time limit, by which a test finds its own."""
    mark = f'"seconds": {seconds}'.encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        # Inside the list of another command line, quotes are escaped.
        if mark in line.replace(b"\\", b""):
            found.append(int(folder.name))
    return found


def is_program_running(seconds: float) -> bool:
    """Whether a sandbox with this time limit has come as far as its program."""
    found = guards(seconds)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes()
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if line.endswith(b"/sandbox/program.py\0") and int(parent) in found:
            return True
    return False


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)
