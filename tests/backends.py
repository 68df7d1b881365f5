"""The backends a test can run on: the numpy reference, and the native one per kernel table."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from powerinfer.ops.protocol import Ops
from powerinfer.ops.reference import ReferenceOps

__all__ = ["BACKENDS", "NATIVE", "using"]

NATIVE = tuple(f"native-{table}" for table in ("portable", "avx2", "avx512", "neon"))
"""One name per kernel table there is for any machine."""

BACKENDS = ("reference", *NATIVE)


@contextmanager
def using(name: str, num_threads: int = 2) -> Iterator[Ops]:
    """Make the operations of a backend; the kernels in use are restored afterwards.

    Skips the test where this CPU has no such kernels.
    """
    if name == "reference":
        yield ReferenceOps()
        return
    from powerinfer.ops import native

    table = name.removeprefix("native-")
    if table not in native.available_kernels():
        pytest.skip(f"this CPU has no {table} kernels")
    before = native.selected_kernels()
    native.select_kernels(table)
    try:
        yield native.NativeOps(num_threads=num_threads)
    finally:
        native.select_kernels(before)
