"""The device to train on."""

from collections.abc import Iterator
from contextlib import contextmanager

from powerinfer._extras import how_to_install
from powerinfer.errors import DeviceError

__all__ = ["naming_exhaustion", "training_device"]


def training_device(name: str, *, command: str) -> str:
    """Check torch's device `cpu`, `cuda` or `cuda:N`; `auto` is a GPU if there is one.

    Raises:
        DeviceError: torch is not installed, or has no such device.
    """
    try:
        import torch
    except ImportError:
        raise DeviceError(
            f"{command} needs torch, which is not installed", remedy=how_to_install("train")
        ) from None
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if count else "cpu"
    if name != "cpu":
        number = int(name.partition(":")[2] or 0)
        if number >= count:
            raise DeviceError(
                f"device {name}: torch sees {count or 'no'} GPUs here",
                remedy="train with {device='cpu'}",
            )
    return name


@contextmanager
def naming_exhaustion(what: str, remedy: str) -> Iterator[None]:
    """Turn torch's errors for exhausted memory into a DeviceError that names `what`."""
    import torch

    try:
        yield
    except RuntimeError as error:
        # On a CPU torch raises a plain RuntimeError.
        is_cpu = "can't allocate memory" in str(error)
        if not isinstance(error, torch.cuda.OutOfMemoryError) and not is_cpu:
            raise
        raise DeviceError(
            f"{what}: the memory of the {'CPU' if is_cpu else 'GPU'} is full", remedy=remedy
        ) from None
