"""Selection of devices: the CPU alone, or the CPU and a GPU.

Imports torch only if a GPU was requested or a GPU driver is installed.
"""

import importlib.util
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from powerinfer._extras import how_to_install
from powerinfer.errors import DeviceError
from powerinfer.options.options import AUTO, EngineOptions

if TYPE_CHECKING:
    from powerinfer.ops.gpu.devices import TorchDevice

__all__ = ["Device", "describe_gpus", "find_device", "has_driver", "is_interpreting"]

# Traces of the drivers of NVIDIA, WSL and AMD in the file system; cheap to check.
_DRIVER_PATHS = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd", "/proc/driver/nvidia")
_log = logging.getLogger(__name__)

_TRUE = ("1", "true", "yes", "on")
_EXTRA = how_to_install("cuda")


@dataclass(frozen=True, slots=True)
class Device:
    """Device for the GPU half of a model.

    Attributes:
        name: device name in torch: `cuda:0`, or `cpu` if kernels are interpreted.
        is_interpreted: Triton's interpreter runs the kernels on torch's cpu device: slow, and its
            speed says nothing about a GPU.
    """

    name: str
    title: str
    is_interpreted: bool = False


def find_device(options: EngineOptions) -> Device | None:
    """Find the GPU to use, or None for the CPU alone.

    `auto` takes the first GPU that torch sees, or the CPU with a warning if that GPU is too old for
    our kernels. Options about a GPU, and `cuda`, require one.

    Raises:
        DeviceError: torch or the device is missing, or the device is too old; the message says what
            to do.
    """
    if not options.may_use_gpu:
        return None
    is_wanted = options.wants_gpu
    if not is_wanted and not (has_driver() and _has_modules()):
        return None
    # Braces let the command line replace the option's name by its flag.
    asked = f" ({{{options.gpu_requests[0]}}} is set)" if options.gpu_requests else ""
    why = asked if options.device == AUTO else ""
    if is_wanted and not _has_modules():
        missing = "torch" if not _is_installed("torch") else "triton"
        raise DeviceError(
            remedy=f"using a GPU{why} needs {missing}, which is not installed; {_EXTRA}"
        )
    return _find(options.device, why=why, is_wanted=is_wanted)


def _find(wanted: str, *, why: str, is_wanted: bool) -> Device | None:
    try:
        from powerinfer.ops.gpu import devices as torch_devices
    except (ImportError, OSError) as error:
        # Installed, but not for this machine: an error only if a GPU was requested.
        if not is_wanted:
            return None
        raise DeviceError(
            f"torch cannot be imported: {error}", remedy=f"using a GPU{why} needs it; {_EXTRA}"
        ) from error
    devices = torch_devices.find_devices()
    if devices:
        _, _, number = wanted.partition(":")
        index = int(number or 0)
        if index >= len(devices):
            listed = ", ".join(f"{device.name} {device.title}" for device in devices)
            raise DeviceError(f"there is no device {wanted}; torch sees: {listed}")
        return _usable(devices[index], why=why, is_wanted=is_wanted)
    if not is_wanted:
        return None
    if is_interpreting():
        return Device("cpu", "Triton's interpreter on the CPU", is_interpreted=True)
    reason = torch_devices.why_no_device() if has_driver() else "no GPU driver was found"
    raise DeviceError(
        f"no usable CUDA device: {reason}",
        remedy=f"leave the option{why} out or use {{device='cpu'}} to run on the CPU; "
        "TRITON_INTERPRET=1 tries the GPU path without a GPU, slowly",
    )


def _usable(device: "TorchDevice", *, why: str, is_wanted: bool) -> Device | None:
    problem = device.why_unusable
    if problem is None:
        return Device(device.name, device.title)
    if is_wanted:
        raise DeviceError(
            problem, remedy=f"leave the option{why} out or use {{device='cpu'}} to run on the CPU"
        )
    _log.warning("%s: the CPU runs alone", problem)
    return None


def describe_gpus() -> list[str]:
    """List each GPU that `auto` may take, or the reason why there is none."""
    if not has_driver():
        return ["none: no GPU driver was found"]
    if not _has_modules():
        return [f"unused: torch and triton are not installed; {_EXTRA}"]
    try:
        from powerinfer.ops.gpu import devices as torch_devices
    except (ImportError, OSError) as error:
        return [f"unused: torch cannot be imported: {error}"]
    found = [
        f"{device.name} {device.title}, {device.total_bytes / 2**30:.1f} GiB"
        if device.why_unusable is None
        else f"unused: {device.why_unusable}"
        for device in torch_devices.find_devices()
    ]
    return found or [f"none: {torch_devices.why_no_device()}"]


def has_driver() -> bool:
    """Look for traces of a GPU driver. False rules out a GPU; True does not promise one."""
    return any(Path(path).exists() for path in _DRIVER_PATHS)


def is_interpreting() -> bool:
    """Check whether the environment asks for Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "").strip().lower() in _TRUE


def _has_modules() -> bool:
    return _is_installed("torch") and _is_installed("triton")


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
