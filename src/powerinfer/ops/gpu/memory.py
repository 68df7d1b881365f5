"""Memory of a torch device and page-locked memory: allocation, transfers, and errors of both."""

import math
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.gpu.formats import aligned

__all__ = [
    "Arena",
    "DeviceMemory",
    "KernelError",
    "is_out_of_memory",
    "naming_exhaustion",
    "naming_gpu_failure",
    "naming_kernel_failure",
    "release_cached",
]

# Characters of another library's message in ours: compilers print pages.
_MOST_QUOTED = 200


def release_cached() -> None:
    """Return torch's cached memory to the driver."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# Messages of torch's and Triton's plain RuntimeErrors about it: no room for page-locked memory, for
# a module of kernels, or for the handle of cuBLAS, which the first prompt creates (the second name
# is that of older versions).
_EXHAUSTED = "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"


def is_out_of_memory(error: BaseException) -> bool:
    """Test whether an error reports that memory of the device or page-locked memory ran out."""
    if isinstance(error, OutOfDeviceMemoryError | torch.cuda.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _EXHAUSTED)


@contextmanager
def naming_exhaustion(what: str, num_bytes: int) -> Iterator[None]:
    """Turn torch's error for exhausted memory into OutOfDeviceMemoryError, which names `what`."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfDeviceMemoryError(
            f"the device has no room for {what} ({num_bytes / 2**20:.1f} MiB)",
            remedy="use a smaller {vram_budget}",
        ) from error


class KernelError(DeviceError):
    """A kernel does not compile, or Triton cannot load it."""


@contextmanager
def naming_kernel_failure() -> Iterator[None]:
    """Turn errors of Triton, for kernels that do not compile or load, into a KernelError.

    Its classes derive from Exception, and it passes on what compilers and its cache's files raise.
    Errors that the driver reports through it stay as they are, see `step_graphs`.
    """
    try:
        yield
    except Exception as error:
        launcher = _launcher(error)
        # "Triton Error [CUDA]: ..." quotes the driver.
        if launcher is None or is_out_of_memory(error) or "Triton Error [" in str(error):
            raise
        raise KernelError(
            f"the GPU kernel of {launcher} does not compile or load: {_one_line(error)}",
            remedy="take {device='cpu'}",
        ) from error


@contextmanager
def naming_gpu_failure() -> Iterator[None]:
    """Turn errors of torch, Triton and the driver into DeviceError or OutOfDeviceMemoryError."""
    try:
        with naming_kernel_failure():
            yield
    except RuntimeError as error:
        kind = OutOfDeviceMemoryError if is_out_of_memory(error) else DeviceError
        raise kind(f"the GPU failed: {_one_line(error)}", remedy="take {device='cpu'}") from error


def _launcher(error: BaseException) -> str | None:
    """Name the function whose launch failed inside Triton; None if the error is not Triton's."""
    caller = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == "triton":
            return caller
        caller = f"{module.rpartition('.')[2]}.{frame.f_code.co_name}"
    return None


def _one_line(error: BaseException) -> str:
    """Shorten the first cause of an error: Triton puts a kernel's source into the others."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = getattr(error, "error_message", None) or str(error)
    return f"{type(error).__name__}: {' '.join(text.split())[:_MOST_QUOTED]}"


class Arena:
    """Device memory that is allocated at once and cut into consecutive arrays.

    torch takes memory from the driver in pieces of 2 or 20 MiB and up, so that many separate arrays
    take more than their bytes. Here a gap of less than `formats.ALIGNMENT` bytes follows each, and
    a lack of memory shows before anything is sent. The arrays keep the memory alive.

    Attributes:
        used_bytes: bytes of all arrays so far, including gaps.
        is_counting: its arrays hold no numbers.
    """

    def __init__(self, memory: Tensor) -> None:
        """Cut up existing memory, an aligned u8[num_bytes]."""
        self._memory = memory
        self.used_bytes = 0
        self.is_counting = memory.is_meta

    @classmethod
    def allocate(
        cls, device: torch.device, num_bytes: int, what: str, *, is_zero: bool = True
    ) -> "Arena":
        """Allocate memory of a device for the purpose `what`, see `naming_exhaustion`."""
        with naming_exhaustion(what, num_bytes):
            memory = torch.empty(num_bytes, dtype=torch.uint8, device=device)
            return cls(memory.zero_() if is_zero else memory)

    @classmethod
    def counting(cls) -> "Arena":
        """Create an endless arena without memory, to count the bytes of arrays."""
        # More than any device has.
        return cls(torch.empty(1 << 56, dtype=torch.uint8, device="meta"))

    def array(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Cut out the next array, as the memory is, or raise OutOfDeviceMemoryError."""
        first, num_bytes = self.used_bytes, math.prod(shape) * dtype.itemsize
        if first + num_bytes > len(self._memory):
            raise OutOfDeviceMemoryError(
                f"an arena of {len(self._memory)} bytes, {first} of them in use, has no room for "
                f"{num_bytes} more",
                remedy="use a smaller {vram_budget}",
            )
        self.used_bytes += aligned(num_bytes)
        return self._memory[first : first + num_bytes].view(dtype).view(shape)


class DeviceMemory:
    """Transfers to and from one torch device.

    Attributes:
        device: a result of `open_device`.
        is_cuda: it is a GPU; otherwise transfers are copies and nothing is asynchronous.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.is_cuda: bool = device.type == "cuda"

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Allocate uninitialised page-locked host memory, which GPUs read and write directly.

        The tensor's `numpy()` is a view.

        Raises:
            OutOfDeviceMemoryError: the system has no page-locked memory left.
        """
        num_bytes = math.prod(shape) * dtype.itemsize
        with naming_exhaustion("page-locked memory of the host", num_bytes):
            return torch.empty(shape, dtype=dtype, pin_memory=self.is_cuda)

    def to_device(self, values: npt.NDArray[np.generic]) -> Tensor:
        """Queue a copy of an array through page-locked memory; work queued later sees it."""
        dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
        staging = self.pinned(values.shape, dtype)
        staging.numpy()[...] = values
        if not self.is_cuda:
            return staging
        with naming_exhaustion("an array", int(values.nbytes)):
            # torch keeps the staging memory until the copy has read it.
            return staging.to(self.device, non_blocking=True)

    def write(self, target: Tensor, values: npt.NDArray[np.generic]) -> None:
        """Queue a copy of an array into a tensor of its shape; see `to_device`."""
        staging = self.pinned(values.shape, target.dtype)
        staging.numpy()[...] = values
        target.copy_(staging, non_blocking=True)

    def to_host(self, values: Tensor) -> npt.NDArray[Any]:
        """Wait for a tensor and copy it: C-contiguous, owned by the caller."""
        staging = self.pinned(tuple(values.shape), values.dtype)
        staging.copy_(values, non_blocking=True)
        if self.is_cuda:
            torch.cuda.current_stream(self.device).synchronize()
        return staging.numpy()

    def keep_for_stream(self, tensor: Tensor) -> None:
        """Keep a tensor's memory from reuse while torch's current stream may use it.

        torch reuses freed memory in the order of the stream that allocated it, unless it knows of
        other streams. A view stands for all of its memory.
        """
        if self.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(self.device))

    def synchronize(self) -> None:
        """Wait for all work of the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self.device)
