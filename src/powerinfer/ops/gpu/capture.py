"""Capturing work into a CUDA graph in such a way that another capture may follow a failed one."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import torch

__all__ = ["PoolHandle", "capturing"]

PoolHandle: TypeAlias = "torch.cuda._POOL_HANDLE"
"""Torch's name for memory that graphs share; it gives the type no public one."""

# Graphs whose captures the driver gave up. torch's allocator of pinned memory may ask them as long
# as the process lives.
_broken: list[torch.cuda.CUDAGraph] = []


@contextmanager
def capturing(
    graph: torch.cuda.CUDAGraph,
    *,
    pool: PoolHandle,
    stream: torch.cuda.Stream,
    device_index: int,
) -> Iterator[None]:
    """Capture what this thread queues on a stream; no garbage is collected meanwhile.

    Collecting may free memory of the device or ask for events, which cannot be captured.

    Args:
        graph: a new one.
        pool: of memory, a handle of torch.
        stream: becomes the current one.
        device_index: number of its device.

    Raises:
        RuntimeError: something cannot be captured; torch says what.
    """
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    except BaseException:
        _unwind(graph, pool, device_index)
        raise
    finally:
        if was_collecting:
            gc.enable()


def _unwind(graph: torch.cuda.CUDAGraph, pool: PoolHandle, device_index: int) -> None:
    """Let torch's allocator know that a capture is over.

    Where the driver gave it up, torch before 2.13 would believe for good that it goes on, and may
    refuse to begin another.
    """
    with suppress(AttributeError, RuntimeError):
        torch._C._cuda_endAllocateToPool(device_index, pool)
        # Only reached where torch had not done so itself.
        _broken.append(graph)
        torch._C._cuda_releasePool(device_index, pool)
