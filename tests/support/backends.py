"""The backends a test can run on: the numpy reference, and the native one per kernel table."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from native_cases import KERNELS
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.ops.some_backend import SomeOps, some_ops

__all__ = ["BACKENDS", "NATIVE", "in_turn", "using"]

NATIVE = tuple(f"native-{table}" for table in KERNELS)
"""One name per kernel table of this machine."""

BACKENDS = ("reference", *NATIVE)


def in_turn(names: Iterable[str], backends: Sequence[str]) -> list[Any]:
    """Pairs of a name and a backend: each name with one of them in turn, all with `--all`."""
    return [
        pytest.param(
            name, backend, marks=() if number % len(backends) == at else pytest.mark.thorough
        )
        for number, name in enumerate(names)
        for at, backend in enumerate(backends)
    ]


@contextmanager
def using(name: str, threads: int = 2) -> Iterator[SomeOps]:
    """Make the operations of a backend."""
    if name == "reference":
        yield some_ops(ReferenceOps())
        return
    yield some_ops(NativeOps(threads, name.removeprefix("native-")))
