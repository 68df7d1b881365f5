"""The default number of threads: the physical cores that this process may use."""

import os
from pathlib import Path

__all__ = ["default_threads", "physical_cores"]

_CPUS = Path("/sys/devices/system/cpu")
# With fewer, computing needs every one.
_CORES_TO_SHARE = 6


def default_threads(*, beside_gpu: bool) -> int:
    """The physical cores, less two beside a GPU: Python and the driver's thread wait actively."""
    cores = physical_cores()
    return cores - 2 if beside_gpu and cores >= _CORES_TO_SHARE else cores


def physical_cores() -> int:
    """Cores this process may run on, counting the hardware threads of a core once.

    Decoding is bound by memory, so a second thread on a core adds contention and no bandwidth.
    """
    try:
        allowed = sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return max(1, os.cpu_count() or 1)
    return max(1, len({_shared_prompts(cpu) for cpu in allowed}))


def _shared_prompts(cpu: int) -> str:
    """What the system calls the core of a CPU; the CPU itself where it does not say."""
    path = _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return str(cpu)
