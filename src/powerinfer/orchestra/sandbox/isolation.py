"""Runs a script in a sandbox: no network, no files but its own, limits on all that it starts."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerinfer.errors import UnsupportedError
from powerinfer.orchestra.sandbox.child import Ended, run_program
from powerinfer.orchestra.sandbox.limits import Limits
from powerinfer.orchestra.sandbox.ways import INSIDE, Way, ways
from powerinfer.values import JSONObject

__all__ = ["PROGRAM", "SYMBOLIC", "run_isolated"]

PROGRAM = INSIDE / "program.py"
"""The script that runs the Python program on its stdin."""
SYMBOLIC = INSIDE / "symbolic.py"
"""The script that evaluates the expression on its stdin, with sympy and mpmath in /modules."""

_SETUP_S = 5.0
_REPORT_BYTES = 1 << 14


async def run_isolated(
    script: Path,
    stdin: bytes,
    limits: Limits,
    shown: Mapping[Path, Path] | None = None,
    allowed: Mapping[str, Way] | None = None,
) -> Ended:
    """Run a script in a sandbox, by the first way that works on this machine.

    Cancelled, it kills the script and all that it started before it raises CancelledError.

    Args:
        script: uses the standard library alone, and what `shown` shows it.
        stdin: what it reads.
        limits: on all its processes.
        shown: further files and folders that it may read, by their paths in the sandbox.
        allowed: ways to try; None means all that this machine has.

    Returns:
        What it left. `limit` is "time", "memory", "processes" or "output", if one ended it.

    Raises:
        UnsupportedError: no way works; the line says why and how to get one.
    """
    reasons = []
    for name, way in (ways() if allowed is None else allowed).items():
        attempt = await _attempt(way, script, stdin, limits, shown or {})
        if attempt.has_started:
            return attempt.ended
        reasons.append(f"{name}: {attempt.reason}")
    raise UnsupportedError(
        f"no sandbox works here ({'; '.join(reasons) or 'it needs Linux'})", remedy=_remedy()
    )


@dataclass(frozen=True)
class _Attempt:
    """One way tried: whether the script was started, what it left, and why it was not."""

    has_started: bool
    ended: Ended
    reason: str


async def _attempt(
    way: Way, script: Path, stdin: bytes, limits: Limits, shown: Mapping[Path, Path]
) -> _Attempt:
    reading, writing = os.pipe()
    try:
        try:
            ended = await run_program(
                way(script, shown, limits, writing),
                stdin=stdin,
                # The guard keeps the time; this is for a guard that cannot.
                seconds=limits.seconds + _SETUP_S,
                output_bytes=limits.output_bytes,
                env={},
                pass_fds=(writing,),
            )
        finally:
            os.close(writing)
        os.set_blocking(reading, False)
        report = _report(reading)
    finally:
        os.close(reading)
    return _judged(ended, report)


def _report(reading: int) -> JSONObject:
    """What enter.py and guard.py have written, all lines as one object; nobody writes any more."""
    try:
        data = os.read(reading, _REPORT_BYTES)
    except BlockingIOError:
        return {}
    merged: JSONObject = {}
    for line in data.splitlines():
        merged |= json.loads(line)
    return merged


def _judged(ended: Ended, report: JSONObject) -> _Attempt:
    limit = ended.limit or report.get("limit")
    code = report.get("code")
    told = Ended(
        ended.stdout,
        ended.stderr,
        code if isinstance(code, int) else ended.code,
        limit if isinstance(limit, str) else None,
    )
    said = ended.stderr.decode(errors="replace").strip().splitlines()
    reason = str(report.get("failed") or (said[-1] if said else f"exit code {ended.code}"))
    return _Attempt("started" in report, told, reason[:200])


def _remedy() -> str:
    """How to get a sandbox on this machine."""
    for path, bad, cure in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "=0"),
        ("kernel/unprivileged_userns_clone", "0", "=1"),
        ("user/max_user_namespaces", "0", "=10000"),
    ):
        if _setting(path) == bad:
            name = path.replace("/", ".")
            return f"install bubblewrap, or allow user namespaces: sudo sysctl -w {name}{cure}"
    return (
        "install bubblewrap (apt install bubblewrap); in a container, user namespaces must be "
        "allowed from outside, as with podman's or docker's --security-opt seccomp=unconfined"
    )


def _setting(name: str) -> str:
    try:
        return (Path("/proc/sys") / name).read_text().strip()
    except OSError:
        return ""
