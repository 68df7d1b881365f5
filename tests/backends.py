"""The backends a test can run on: the numpy reference, and the native one per kernel table."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from powerinfer.ops.cpu.ops import NativeOps, machine_info
from powerinfer.ops.protocol import Ops
from powerinfer.ops.reference.ops import ReferenceOps

__all__ = ["BACKENDS", "NATIVE", "using"]

NATIVE = tuple(f"native-{table}" for table in ("portable", "avx2", "avx512", "amx", "neon"))
"""One name per kernel table there is for any machine."""

BACKENDS = ("reference", *NATIVE)


@contextmanager
def using(name: str, threads: int = 2) -> Iterator[Ops]:
    """Make the operations of a backend.

    Skips the test where this CPU has no such kernels.
    """
    if name == "reference":
        yield ReferenceOps()
        return
    table = name.removeprefix("native-")
    if table not in machine_info().available_kernels:
        pytest.skip(f"this CPU has no {table} kernels")
    yield NativeOps(threads, table)
