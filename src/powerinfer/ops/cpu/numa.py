"""Pins the CPU's threads to the processor next to another device.

In a machine of several processors each has its own memory (a NUMA node), and a GPU is attached to
one of them. The data that the GPU exchanges in every layer crosses from one processor to another
unless the threads that answer it run on the GPU's node. Linux names it under /sys (see
Documentation/ABI/testing/sysfs-bus-pci and stable/sysfs-devices-node in its sources).
"""

import os
from pathlib import Path

from powerinfer.ops.cpu.ops import NativeOps

__all__ = ["cpus_of_node", "pin_to_node"]

_SYS = Path("/sys")


def pin_to_node(pci_address: str, cpu: NativeOps, sys: Path = _SYS) -> bool:
    """Pin the CPU backend's threads to the node of a device on the PCI bus, until `unpin`.

    Args:
        pci_address: name under /sys/bus/pci/devices, such as `0000:3b:00.0`.

    Returns:
        False if they are not pinned: there is only one node, the system does not name that of the
        device, or it has fewer cores for this process than threads, whose number the user chose.
    """
    cpus = cpus_of_node(pci_address, sys) & _allowed_cpus()
    if len({_siblings(number, sys) for number in cpus}) < cpu.threads:
        return False
    return cpu.pin(cpus)


def cpus_of_node(pci_address: str, sys: Path = _SYS) -> frozenset[int]:
    """Return the numbers of the CPUs on the node of a device; none if nodes make no difference."""
    nodes = sys / "devices" / "system" / "node"
    try:
        node = int(_read(sys / "bus" / "pci" / "devices" / pci_address / "numa_node"))
        if node < 0 or sum(1 for _ in nodes.glob("node[0-9]*")) < 2:
            return frozenset()
        return _parse_list(_read(nodes / f"node{node}" / "cpulist"))
    except (OSError, ValueError):
        return frozenset()


def _parse_list(text: str) -> frozenset[int]:
    """Parse a list such as `0-3,8`."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _siblings(cpu: int, sys: Path) -> str:
    """Return the system's name of the core of a CPU, or the CPU if it has none."""
    path = sys / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology" / "thread_siblings_list"
    try:
        return _read(path)
    except OSError:
        return str(cpu)


def _allowed_cpus() -> set[int]:
    try:
        return os.sched_getaffinity(0)
    except AttributeError:  # not on macOS
        return set()


def _read(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
