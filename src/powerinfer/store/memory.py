"""Memory available to this process, according to the system and its control group."""

from pathlib import Path

from powerinfer._files import format_bytes

__all__ = ["available_memory_bytes", "format_bytes", "total_memory_bytes"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes() -> int | None:
    """Return the bytes available without swapping; None if the system does not say.

    Page cache counts as available. The limit of the control group (containers) applies.
    """
    return _least(_system_bytes("MemAvailable"), _cgroup_bytes())


def total_memory_bytes() -> int | None:
    """Return the total bytes of this machine or control group; None if unknown."""
    return _least(_system_bytes("MemTotal"), _cgroup_limit())


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)


def _system_bytes(wanted: str) -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == wanted:
            return int(rest.split()[0]) * 1024
    return None


def _cgroup_bytes() -> int | None:
    """Return the bytes left in the control group (v2), not counting cached files as used."""
    limit = _cgroup_limit()
    if limit is None:
        return None
    try:
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        statistics = (_CGROUP / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    cached = dict(zip(statistics[::2], statistics[1::2], strict=False)).get("file", "0")
    return max(0, limit - used + int(cached))


def _cgroup_limit() -> int | None:
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        return None if limit == "max" else int(limit)
    except (OSError, ValueError):
        return None
