"""Processor, memory, system, versions and commit of a measurement."""

import os
import platform
import subprocess
from pathlib import Path
from typing import TypedDict

import numpy as np

from powerinfer._version import __version__

__all__ = ["Machine", "describe_machine"]

_CPUINFO = Path("/proc/cpuinfo")
_MEMINFO = Path("/proc/meminfo")
_THIS_FILE = Path("src/powerinfer/bench/machine.py")


class Machine(TypedDict):
    """Facts for a result file, as JSON values; unknown ones are None."""

    cpu: str
    logical_cpus: int | None
    memory_bytes: int | None
    system: str
    python: str
    numpy: str
    powerinfer: str
    commit: str | None


def describe_machine() -> Machine:
    """Collect the facts of this machine."""
    return {
        "cpu": _field(_CPUINFO, "model name") or platform.processor() or platform.machine(),
        "logical_cpus": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "powerinfer": __version__,
        "commit": _commit(),
    }


def _field(path: Path, name: str) -> str | None:
    """Return the first value of a `name : value` line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return None


def _memory_bytes() -> int | None:
    total = _field(_MEMINFO, "MemTotal")
    return None if total is None else int(total.split()[0]) * 1024


def _commit() -> str | None:
    """Commit of the source tree this runs from, with `+` appended if files were changed.

    None if the package is not in a checkout of this project.
    """
    folder = Path(__file__).resolve().parent
    root = _git(folder, "rev-parse", "--show-toplevel")
    if not root or not (Path(root) / _THIS_FILE).is_file():
        return None
    commit = _git(folder, "rev-parse", "--short=12", "HEAD")
    if commit is None:
        return None
    return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            # Do not take the lock: somebody may be committing.
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
