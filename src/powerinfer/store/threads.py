"""The default number of threads: the physical cores that this process may use."""

import os
from pathlib import Path

__all__ = ["default_threads", "physical_cores"]

_CPUS = Path("/sys/devices/system/cpu")
# With fewer cores, computing needs all of them.
_CORES_TO_SHARE = 6


def default_threads(*, beside_gpu: bool) -> int:
    """Return the physical cores, minus two with a GPU, for the busy-waiting Python and driver."""
    cores = physical_cores()
    return cores - 2 if beside_gpu and cores >= _CORES_TO_SHARE else cores


def physical_cores() -> int:
    """Count the cores this process may run on, the hardware threads of a core once.

    Decoding is bound by memory, so a second thread on a core adds contention and no bandwidth.
    """
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return max(1, os.cpu_count() or 1)
    return max(1, len({_siblings(cpu) for cpu in allowed}))


def _siblings(cpu: int) -> str:
    """Return the system's name of the core of a CPU, or else the CPU itself."""
    path = _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
