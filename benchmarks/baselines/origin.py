"""What a section is about: commit, machine and date."""

import datetime
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "Section", "commit_of", "origin"]

ROOT = Path(__file__).resolve().parent.parent.parent
Section = dict[str, Any]


def origin(commit: str) -> Section:
    """Commit, processor, cores and date."""
    cpus = Path("/proc/cpuinfo")
    text = cpus.read_text(encoding="utf-8") if cpus.exists() else ""
    name = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return {
        "commit": commit,
        "processor": name[1].strip() if name else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def commit_of(checkout: Path, revision: str = "HEAD") -> str:
    """The commit's short name, with + where tracked files differ from it."""
    commit = _git(checkout, "rev-parse", "--short=12", revision)
    is_changed = revision == "HEAD" and _git(checkout, "diff", "HEAD", "--name-only")
    return f"{commit}+" if is_changed else commit


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
