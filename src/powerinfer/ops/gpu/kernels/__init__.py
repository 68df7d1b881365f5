"""Triton kernels of the GPU backend and the functions that launch them.

Without a device they run in Triton's interpreter on torch's ``cpu`` tensors, which must be chosen
before Triton is imported; hence here. An explicit ``TRITON_INTERPRET`` in the environment is left
alone. Every kernel converts to f32 right after a load, sums in a fixed order without float
atomics, has a grid that depends on shapes alone, and takes counts from device memory, so that a
launch can be recorded in a CUDA graph. Launchers expect the device of their tensors to be torch's
current device.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

__all__ = ["IS_INTERPRETED", "MAX_TOKENS", "counting_compiled"]

MAX_TOKENS = 8
"""Most tokens that one launch of a matrix-vector kernel serves."""

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Said aloud because its default changes with Triton 3.10: a product and a sum are one operation,
# of which unpacking leaves few to spare.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

IS_INTERPRETED = os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "yes", "on")
"""Kernels run in the interpreter, where a program costs as much as thousands of numbers."""


def _mend_interpreter() -> None:
    """Let scalars be the bounds of loops in the interpreter of Triton before 3.7.

    There they are arrays of one number, which numpy from 2.4 on does not convert to an index
    (github.com/triton-lang/triton/issues/9171).
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor, *scope):
        patch(tensor, *scope)
        tensor.__index__ = lambda scalar: int(scalar.handle.data.item())

    interpreter._patch_lang_tensor = patch_and_mend


@contextmanager
def counting_compiled(report: Callable[[int], None]) -> Iterator[None]:
    """Report how many kernels were compiled so far, at the start and after each.

    Those that Triton finds in its cache do not count.
    """
    from triton import knobs

    num_compiled, outer = 0, knobs.compilation.listener

    def listen(*, cache_hit, **compiled):
        nonlocal num_compiled
        if outer is not None:
            outer(cache_hit=cache_hit, **compiled)
        if not cache_hit:
            num_compiled += 1
            report(num_compiled)

    report(0)
    knobs.compilation.listener = listen
    try:
        yield
    finally:
        knobs.compilation.listener = outer


def _triton_version() -> tuple[int, ...]:
    from triton import __version__

    return tuple(int(number) for number in __version__.split(".")[:2])


if IS_INTERPRETED and _triton_version() < (3, 7):
    _mend_interpreter()
