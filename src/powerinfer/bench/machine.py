"""Processor, memory, system, versions and commit of a measurement."""

import os
import platform
import subprocess
from pathlib import Path
from typing import TypedDict

import numpy as np

from powerinfer._version import __version__
from powerinfer.store.measurements import cpu_name

__all__ = ["Machine", "describe_machine"]

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
        "cpu": cpu_name(),
        "logical_cpus": os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "powerinfer": __version__,
        "commit": _commit(),
    }


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None  # a system that does not say


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
