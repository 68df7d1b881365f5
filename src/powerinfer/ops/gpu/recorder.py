"""Recording work of a CUDA stream as a graph, and the stream that everything runs on.

A failed capture does not prevent later ones.
"""

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import DeviceError
from powerinfer.values import Batch, FloatArray

if TYPE_CHECKING:
    # It comes with the kernels, which recording does not need.
    from powerinfer.ops.gpu.cache import DeviceBatch
    from powerinfer.ops.gpu.ops import TorchGPU

__all__ = ["Activations", "CudaRecorder", "CudaRecording", "waiting_event"]

# With fewer cores every one of them has a worker of the CPU's half, which a wait that spins would
# hold up.
_CORES_TO_SPIN = 6

# Graphs whose captures the driver aborted. torch's allocator of pinned memory may use them until
# the process ends.
_broken: list[torch.cuda.CUDAGraph] = []


def waiting_event() -> torch.cuda.Event:
    """Create an event whose `synchronize` spins if there are enough cores, and sleeps otherwise."""
    return torch.cuda.Event(blocking=not _may_spin())


def _may_spin() -> bool:
    try:
        num_cores = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux tells
        num_cores = os.cpu_count() or 1
    return num_cores >= _CORES_TO_SPIN


Activations: TypeAlias = FloatArray | Tensor
"""f32[num_tokens, columns] on the host or on the device."""


class CudaRecording:
    """Work that can be repeated, and page-locked memory that it copies its result to."""

    def __init__(self, graph: torch.cuda.CUDAGraph, received: Tensor | None) -> None:
        self._graph = graph
        self._received = received
        self.is_dropped = False

    def replay(self) -> None:
        """Queue the work."""
        self._graph.replay()

    def result(self) -> FloatArray:
        """Copy the result of the last finished replay.

        Raises:
            DeviceError: none was recorded.
        """
        if self._received is None:
            raise DeviceError("this record leaves no result; record work with its result's shape")
        return np.array(self._received.numpy())

    def drop(self) -> None:
        """Release the graph's memory; no replay may be running."""
        self._graph.reset()
        self.is_dropped = True


class CudaRecorder:
    """Records on the one stream of all work of the device, whose order is that of the calls.

    The graphs share one pool of memory, since they never run at the same time.
    """

    def __init__(self, gpu: "TorchGPU") -> None:
        self._gpu = gpu
        with torch.cuda.device(gpu.device):
            self.stream = torch.cuda.Stream()
        self._reached = None if _may_spin() else waiting_event()
        self._pool: torch.cuda._POOL_HANDLE | None = None
        self._recordings: weakref.WeakSet[CudaRecording] = weakref.WeakSet()

    @contextmanager
    def working(self) -> Iterator[None]:
        """Let torch queue work on the stream; nested use is cheap."""
        outer = torch.cuda.current_stream(self._gpu.device)
        if outer == self.stream:
            yield
            return
        # Copies of weights may still be queued on the stream that the caller uses otherwise.
        if not outer.query():
            self.stream.wait_stream(outer)
        with torch.cuda.device(self._gpu.device):
            try:
                # Not torch's context, which asks for the current stream again, in every step.
                torch.cuda.set_stream(self.stream)
                yield
            finally:
                torch.cuda.set_stream(outer)

    def inputs(self, x: FloatArray, batch: Batch) -> "DeviceBatch":
        """Create static inputs of steps with these sizes."""
        return self._gpu.static_batch(batch, x.shape[1])

    def record(
        self, work: Callable[[], Activations | None], result_shape: tuple[int, ...] | None = None
    ) -> CudaRecording:
        """Capture `work`, which must not wait for the device or allocate pinned memory.

        Args:
            work: returns the tensor that holds the result, if any.
            result_shape: shape of the result to be copied to the host; None for no copy.

        Raises:
            DeviceError: the result is an array on the host.
            RuntimeError: something cannot be captured; torch says what.
        """
        received = None
        if result_shape is not None:
            received = torch.empty(result_shape, dtype=torch.float32, pin_memory=True)
        # torch refuses a pool whose graphs are all gone, and still counts a failed record among its
        # pool's users.
        pool, self._pool = self._pool, None
        if pool is None or all(recording.is_dropped for recording in self._recordings):
            pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with self._capturing(graph, pool):
            output = work()
            if received is not None and isinstance(output, Tensor):
                received.copy_(output, non_blocking=True)
        if isinstance(output, np.ndarray):
            raise DeviceError("a step that ends on the host cannot be recorded; run it eagerly")
        self._pool = pool
        recording = CudaRecording(graph, received)
        self._recordings.add(recording)
        return recording

    @contextmanager
    def _capturing(
        self, graph: torch.cuda.CUDAGraph, pool: "torch.cuda._POOL_HANDLE"
    ) -> Iterator[None]:
        """Capture what this thread queues on the stream, which becomes the current one.

        Garbage collection is off meanwhile: it may free memory of the device or use events, which
        cannot be captured.
        """
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            mode = "thread_local"
            with torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode=mode):
                yield
        except BaseException:
            # If the driver aborted the capture, torch before 2.13 would assume forever that it goes
            # on, and may refuse to begin another.
            with suppress(AttributeError, RuntimeError):
                torch._C._cuda_endAllocateToPool(self._gpu.device.index, pool)
                # Only reached if torch had not done so itself.
                _broken.append(graph)
                torch._C._cuda_releasePool(self._gpu.device.index, pool)
            raise
        finally:
            if was_collecting:
                gc.enable()

    def to_host(self, values: Activations) -> FloatArray:
        """Wait for the numbers of a tensor or array and return them."""
        return values if isinstance(values, np.ndarray) else self._gpu.to_host(values)

    def synchronize(self) -> None:
        """Wait until the stream is idle."""
        if self._reached is None:
            self.stream.synchronize()
            return
        self._reached.record(self.stream)
        self._reached.synchronize()
