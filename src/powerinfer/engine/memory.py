"""How much memory this process may still use, according to the system and its control group."""

from pathlib import Path

__all__ = ["available_memory_bytes", "format_bytes"]

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_memory_bytes() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say.

    Page cache counts as available. A limit of the control group (containers) counts too.
    """
    amounts = [amount for amount in (_system_bytes(), _cgroup_bytes()) if amount is not None]
    return min(amounts) if amounts else None


def format_bytes(count: float) -> str:
    """A size for people, in powers of 1024."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def _system_bytes() -> int | None:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _cgroup_bytes() -> int | None:
    """What version 2 of control groups leaves, not counting cached files as used."""
    try:
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        statistics = (_CGROUP / "memory.stat").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    cached = dict(zip(statistics[::2], statistics[1::2], strict=False)).get("file", "0")
    return max(0, int(limit) - used + int(cached))
