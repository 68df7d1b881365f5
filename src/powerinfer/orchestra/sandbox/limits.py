"""Limits on a program and everything that it starts."""

from dataclasses import dataclass

__all__ = ["Limits"]

_MiB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits on a tree of processes.

    Attributes:
        seconds: from the program's start, and processor time of each process.
        memory_bytes: resident in all processes and in files together; address space of each.
        processes: at a time, threads included where Linux counts them.
        output_bytes: on stdout and stderr together.
        file_bytes: of each file, and of all files together.
    """

    seconds: float = 10.0
    memory_bytes: int = 512 * _MiB
    processes: int = 16
    output_bytes: int = 64 << 10
    file_bytes: int = 32 * _MiB
