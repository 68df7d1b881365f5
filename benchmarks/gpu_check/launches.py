"""Counts what Python launches on a device, so that a recorded step shows by itself.

A recorded step replays graphs and launches no kernel from Python, an eager one launches every
kernel. Counted where Triton and torch are entered, so that it does not matter how our own code
records.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from unittest import mock

__all__ = ["Launches", "counting"]


@dataclass
class Launches:
    """Of everything that ran while they were counted.

    Attributes:
        kernels: Triton kernels that Python launched, interpreted ones too.
        replays: CUDA graphs that Python replayed.
    """

    kernels: int = 0
    replays: int = 0

    @property
    def is_recorded(self) -> bool:
        """Graphs alone did the device's work, or the device had none."""
        return self.kernels == 0


@contextmanager
def counting() -> Iterator[Launches]:
    """Count until the end of the block; nothing may be recorded within."""
    # First: it chooses how kernels run, which must be known when Triton is imported.
    import_module("powerinfer.ops.gpu.kernels")
    import torch
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    found = Launches()

    def kernel() -> None:
        found.kernels += 1

    def replay() -> None:
        found.replays += 1

    with (
        _told(JITFunction, "run", kernel),
        _told(InterpretedFunction, "run", kernel),
        _told(torch.cuda.CUDAGraph, "replay", replay),
    ):
        yield found


@contextmanager
def _told(owner: type, name: str, tell: Callable[[], None]) -> Iterator[None]:
    """Have every call of a method told."""
    plain: Callable[..., object] = getattr(owner, name)

    def called(*arguments: object, **named: object) -> object:
        tell()
        return plain(*arguments, **named)

    with mock.patch.object(owner, name, called):
        yield
