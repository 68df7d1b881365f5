"""The driver's own memory for this process on a device, measured when the device is first used.

CUDA does not report it. NVML, NVIDIA's library for monitoring, counts the memory that all processes
use: what it counts more after the first use is the context. Functions and structures are those of
the NVML API reference.
"""

import ctypes
from collections.abc import Callable
from functools import cache

import torch

__all__ = ["context_bytes", "used_bytes"]

LIBRARY = "libnvidia-ml.so.1"

# Beyond these bounds another process took or gave back memory meanwhile, or the device had been
# used before.
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 3 << 29


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@cache
def context_bytes(name: str) -> int | None:
    """Use a device for the first time in this process, and measure the memory that this takes.

    Returns:
        None if NVML does not answer, or if the device had been used before.
    """
    before = used_bytes(name)
    if before is None:
        return None
    # Launches a kernel, too: the first one takes memory for stacks.
    torch.zeros(1, device=name).add_(1)
    torch.cuda.synchronize(name)
    torch.cuda.empty_cache()
    taken = (used_bytes(name) or 0) - before
    return taken if _LEAST_BYTES <= taken <= _MOST_BYTES else None


def used_bytes(name: str) -> int | None:
    """Return the memory that all processes use on a device; None if NVML does not tell."""
    device = torch.device(name)
    if device.type != "cuda":
        return None
    try:
        library = ctypes.CDLL(LIBRARY)
        # torch leaves out the beginning of NVML's names.
        uuid = f"GPU-{str(torch.cuda.get_device_properties(device).uuid).removeprefix('GPU-')}"
        handle, memory = ctypes.c_void_p(), _Memory()
        _call(library.nvmlInit_v2)
        _call(library.nvmlDeviceGetHandleByUUID, uuid.encode(), ctypes.byref(handle))
        _call(library.nvmlDeviceGetMemoryInfo, handle, ctypes.byref(memory))
    except (OSError, AttributeError):
        # No library, one without these functions, or an error of NVML.
        return None
    return int(memory.used)


def _call(function: Callable[..., int], *arguments: object) -> None:
    error = function(*arguments)
    if error:
        raise OSError(f"NVML failed with error {error}")
