"""The backends a test can run on: the numpy reference, and the native one per kernel table."""

from collections.abc import Iterator
from contextlib import contextmanager

from native_cases import KERNELS
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ops import ReferenceOps

__all__ = ["BACKENDS", "NATIVE", "using"]

NATIVE = tuple(f"native-{table}" for table in KERNELS)
"""One name per kernel table of this machine."""

BACKENDS = ("reference", *NATIVE)


@contextmanager
def using(name: str, threads: int = 2) -> Iterator[Backend]:
    """Make the operations of a backend."""
    if name == "reference":
        yield as_backend(ReferenceOps())
        return
    yield as_backend(NativeOps(threads, name.removeprefix("native-")))
