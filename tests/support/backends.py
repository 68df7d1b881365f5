"""The backends a test can run on: the numpy reference, and the native one per kernel table."""

from collections.abc import Iterator
from contextlib import contextmanager

from native_cases import KERNELS
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.ops.some_backend import SomeOps, some_ops

__all__ = ["BACKENDS", "NATIVE", "using"]

NATIVE = tuple(f"native-{table}" for table in KERNELS)
"""One name per kernel table of this machine."""

BACKENDS = ("reference", *NATIVE)


@contextmanager
def using(name: str, threads: int = 2) -> Iterator[SomeOps]:
    """Make the operations of a backend."""
    if name == "reference":
        yield some_ops(ReferenceOps())
        return
    yield some_ops(NativeOps(threads, name.removeprefix("native-")))
