"""How long the steps of CI take, from what it printed."""

import re
from itertools import pairwise

from baselines.origin import Section

__all__ = ["below", "read_steps"]

_ROW = re.compile(r"^step (.+?): (\d+(?:\.\d+)?) s\b", re.MULTILINE)
# As it was before there was a table: the time since the start, and that of steps beside others.
_HEADER = re.compile(r"^== (.+) \((\d+)s\)$", re.MULTILINE)
_BESIDE = re.compile(r"^(.+) took (\d+)s$", re.MULTILINE)
# Steps take longer at times.
_NOISE_SHARE, _NOISE_SECONDS = 1.1, 5


def read_steps(log: str) -> Section:
    """Seconds of every step; `all` is the whole run where the log tells.

    Raises:
        ValueError: it has no steps.
    """
    rows = _ROW.findall(log)
    if rows:
        return {"seconds": {name: float(seconds) for name, seconds in rows}}
    headers = _HEADER.findall(log)
    steps = {
        name: float(end) - float(start)
        for (name, start), (_, end) in pairwise(headers)
        if not name.endswith(": done")
    }
    steps |= {name: float(seconds) for name, seconds in _BESIDE.findall(log) if name not in steps}
    if not headers:
        raise ValueError("no step in it")
    return {"seconds": steps | {"all": float(headers[-1][1])}}


def below(old: Section, new: Section) -> list[str]:
    """Steps that take longer. A step that is gone may have become several: the whole tells."""
    return [
        f"{name}: {new['seconds'][name]} s after {seconds} s"
        for name, seconds in old["seconds"].items()
        if new["seconds"].get(name, 0) > seconds * _NOISE_SHARE + _NOISE_SECONDS
    ]
