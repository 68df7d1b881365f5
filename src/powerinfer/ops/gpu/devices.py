"""Which devices torch sees, for choosing one; importing this module imports torch.

AMD GPUs appear here too: torch built for ROCm presents them under the name `cuda`.
"""

import warnings
from dataclasses import dataclass

import torch

__all__ = ["TorchDevice", "find_devices", "free_bytes", "release_cached", "why_no_device"]


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """A GPU.

    Attributes:
        name: what torch calls it, such as `cuda:0`.
        title: what its maker calls it.
        total_bytes: of its memory.
    """

    name: str
    title: str
    total_bytes: int


def find_devices() -> tuple[TorchDevice, ...]:
    """All GPUs that torch can use, in its order; none where the driver does not answer."""
    # Where a driver is too old torch warns and says there is no device; `why_no_device` tells.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not torch.cuda.is_available():
            return ()
        count = torch.cuda.device_count()
    return tuple(_device(number) for number in range(count))


def free_bytes(name: str) -> int:
    """Memory of a device that nobody has taken; starts the device's context.

    What torch keeps cached for itself counts as free.
    """
    device = torch.device(name)
    free, _ = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free) + int(cached)


def release_cached() -> None:
    """Give memory that torch keeps for itself back to the driver."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def why_no_device() -> str:
    """One clause on what torch misses."""
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        return f"torch {torch.__version__} was built without CUDA or ROCm"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.is_available()
    told = [" ".join(str(warning.message).split())[:200] for warning in caught]
    return told[0] if told else f"torch {torch.__version__} sees no CUDA device"


def _device(number: int) -> TorchDevice:
    properties = torch.cuda.get_device_properties(number)
    return TorchDevice(f"cuda:{number}", str(properties.name), int(properties.total_memory))
