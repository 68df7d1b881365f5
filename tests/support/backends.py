"""The backends a test can run on: the numpy reference, and the native one per kernel table."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from native_cases import KERNELS
from powerinfer.ops.cpu.machine import machine_info
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.ops.some_backend import SomeOps, some_ops

__all__ = ["BACKENDS", "NATIVE", "using"]

NATIVE = tuple(f"native-{table}" for table in KERNELS)
"""One name per kernel table there is for any machine."""

BACKENDS = ("reference", *NATIVE)


@contextmanager
def using(name: str, threads: int = 2) -> Iterator[SomeOps]:
    """Make the operations of a backend.

    Skips the test where this CPU has no such kernels.
    """
    if name == "reference":
        yield some_ops(ReferenceOps())
        return
    table = name.removeprefix("native-")
    if table not in machine_info().available_kernels:
        pytest.skip(f"this CPU has no {table} kernels")
    yield some_ops(NativeOps(threads, table))
