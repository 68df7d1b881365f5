"""Two ways into a sandbox, as command lines: bubblewrap, and namespaces of our own."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from powerinfer.orchestra.sandbox.limits import Limits
from powerinfer.orchestra.sandbox.python_files import Files, python_files

__all__ = ["INSIDE", "Way", "bubblewrap", "namespaces", "ways"]

INSIDE = Path(__file__).parent / "inside"
_AT = Path("/sandbox")
"""The folder `INSIDE`, as the sandbox shows it."""
_ID = "1000"

Way = Callable[[Path, Mapping[Path, Path], Limits, int], list[str]]
"""Takes the script to run, further files and folders by their paths inside, limits, and the file
descriptor of the report; returns the command line, with a path in its first place."""


def ways() -> dict[str, Way]:
    """The ways of this machine, the better first; that one is here does not mean that it works.

    Bubblewrap is not for root, who stays root outside: the program could write to /proc/sys, and
    Linux does not limit the number of root's processes. Our own way makes root nobody.
    """
    if not sys.platform.startswith("linux"):
        return {}
    has_bubblewrap = shutil.which("bwrap") is not None and os.geteuid() != 0
    first = {"bubblewrap": bubblewrap} if has_bubblewrap else {}
    return {**first, "namespaces": namespaces}


def bubblewrap(
    script: Path, shown: Mapping[Path, Path], limits: Limits, report_fd: int
) -> list[str]:
    """A `Way` by bubblewrap (`bwrap`)."""
    files = _files(script, shown)
    folders = ["--proc", "/proc", "--dir", "/dev"]
    for target, source in files.binds.items():
        is_device = Path("/dev") in target.parents
        folders += ["--dev-bind" if is_device else "--ro-bind", str(source), str(target)]
    for path, link in files.links.items():
        folders += ["--symlink", link, str(path)]
    return [
        shutil.which("bwrap") or "bwrap",
        *["--unshare-all", "--die-with-parent", "--as-pid-1", "--new-session", "--cap-drop", "ALL"],
        *("--uid", _ID, "--gid", _ID, "--hostname", "sandbox"),
        *("--clearenv", "--setenv", "LANG", "C.UTF-8", "--setenv", "HOME", "/tmp"),
        *folders,
        *("--size", str(limits.file_bytes), "--tmpfs", "/tmp"),
        *("--remount-ro", "/", "--chdir", "/tmp", "--"),
        *_guard(files.python, script, limits, report_fd),
    ]


def namespaces(
    script: Path, shown: Mapping[Path, Path], limits: Limits, report_fd: int
) -> list[str]:
    """A `Way` by namespaces that `inside/enter.py` makes."""
    files = _files(script, shown)
    spec = {
        "parent": os.getpid(),
        "report_fd": report_fd,
        "binds": [(str(source), str(target)) for target, source in files.binds.items()],
        "links": [(link, str(path)) for path, link in files.links.items()],
        "file_bytes": limits.file_bytes,
        "argv": _guard(files.python, script, limits, report_fd),
    }
    return _python(files.python, INSIDE / "enter.py", json.dumps(spec))


def _files(script: Path, shown: Mapping[Path, Path]) -> Files:
    files = python_files()
    own = {_AT / "guard.py": INSIDE / "guard.py", _AT / script.name: script}
    return Files(files.python, {**files.binds, **own, **shown}, files.links)


def _guard(python: Path, script: Path, limits: Limits, report_fd: int) -> list[str]:
    spec = {
        "argv": _python(python, _AT / script.name),
        "report_fd": report_fd,
        "seconds": limits.seconds,
        "memory_bytes": limits.memory_bytes,
        "processes": limits.processes,
        "file_bytes": limits.file_bytes,
    }
    return _python(python, _AT / "guard.py", json.dumps(spec))


def _python(python: Path, script: Path, *arguments: str) -> list[str]:
    """Python without site-packages, without variables and folders of the user."""
    return [str(python), "-I", "-S", "-B", str(script), *arguments]
