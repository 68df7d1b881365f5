"""GPUs as torch and their driver describe them: which there are, and how much memory is free.

This includes AMD GPUs: torch built for ROCm presents them under the name `cuda`.

CUDA does not report the driver's own memory for this process. NVML, NVIDIA's library for
monitoring, counts the memory that all processes use: what it counts in addition after the first
use of a device is the context. Functions and structures are those of the NVML API reference.
"""

import ctypes
import warnings
from dataclasses import dataclass
from functools import cache

import torch

from powerinfer.errors import DeviceError

__all__ = [
    "TorchDevice",
    "context_bytes",
    "find_devices",
    "free_bytes",
    "open_device",
    "used_bytes",
    "why_no_device",
]

LIBRARY = "libnvidia-ml.so.1"

# Attention of prompts takes 96 KiB of shared memory per program, which NVIDIA has since Ampere.
_LEAST_CAPABILITY = (8, 0)

# Beyond these bounds another process took or gave back memory meanwhile, or the device had been
# used before.
_LEAST_BYTES, _MOST_BYTES = 64 << 20, 3 << 29


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """A GPU.

    Attributes:
        name: torch's name, such as `cuda:0`.
        title: the maker's name.
        capability: compute capability of an NVIDIA GPU; None for other makers'.
    """

    name: str
    title: str
    total_bytes: int
    capability: tuple[int, int] | None = None

    @property
    def why_unusable(self) -> str | None:
        """Explain in one clause why our kernels cannot run here; None if they can."""
        if self.capability is None or self.capability >= _LEAST_CAPABILITY:
            return None
        major, minor = self.capability
        return (
            f"{self.name} {self.title} has compute capability {major}.{minor}, kernels need "
            f"{_LEAST_CAPABILITY[0]}.{_LEAST_CAPABILITY[1]} or newer"
        )


def find_devices() -> tuple[TorchDevice, ...]:
    """Return the GPUs that torch can use, in its order; none if the driver does not answer."""
    # If a driver is too old torch warns and finds no device; `why_no_device` explains it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    # For ROCm, torch's "capability" numbers AMD's architectures, which is another numbering.
    is_amd, devices = torch.version.hip is not None, []
    for name in (f"cuda:{number}" for number in range(count)):
        found = torch.cuda.get_device_properties(name)
        capability = None if is_amd else (found.major, found.minor)
        devices.append(TorchDevice(name, found.name, found.total_memory, capability))
    return tuple(devices)


def why_no_device() -> str:
    """Explain in one clause why torch finds no device."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} was built without CUDA or ROCm"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    told = [" ".join(str(warning.message).split())[:200] for warning in caught]
    return told[0] if told else f"torch {torch.__version__} sees no CUDA device"


def open_device(name: str) -> torch.device:
    """Open the torch device with this name; a CUDA device becomes the current one.

    Triton launches on the current device, regardless of that of its arguments.

    Raises:
        DeviceError: torch sees no such device.
    """
    if name == "cpu":
        return torch.device(name)
    known = [found.name for found in find_devices()]
    full_name = "cuda:0" if name == "cuda" else name
    if full_name not in known:
        reason = f"torch sees {', '.join(known)}" if known else why_no_device()
        raise DeviceError(f"no device {name}: {reason}", remedy="take another or {device='cpu'}")
    device = torch.device(full_name)
    torch.cuda.set_device(device)
    return device


def free_bytes(name: str) -> int:
    """Return the free memory of a device, including torch's cache; starts its context."""
    free, _ = torch.cuda.mem_get_info(name)
    return free + torch.cuda.memory_reserved(name) - torch.cuda.memory_allocated(name)


@cache
def context_bytes(name: str) -> int | None:
    """Use a device for the first time in this process, and measure the memory that this takes.

    Returns None if NVML does not answer, or if the device had been used before.
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
    if torch.device(name).type != "cuda":
        return None
    # nvmlMemory_t: total, free and used bytes.
    handle, memory = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
    try:
        library = ctypes.CDLL(LIBRARY)
        # torch leaves out the beginning of NVML's names.
        uuid = f"GPU-{str(torch.cuda.get_device_properties(name).uuid).removeprefix('GPU-')}"
        if library.nvmlInit_v2():
            return None
        try:
            has_failed = library.nvmlDeviceGetHandleByUUID(
                uuid.encode(), ctypes.byref(handle)
            ) or library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        finally:
            library.nvmlShutdown()
    except (OSError, AttributeError):
        # No library, or one without these functions.
        return None
    return None if has_failed else memory[2]
