"""What this machine's processor and this build of the native extension can run."""

from dataclasses import dataclass

from powerinfer import _core

__all__ = ["MachineInfo", "machine_info", "product_names", "read_kind"]


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """What this machine's processor can run.

    Attributes:
        cpu_features: instruction-set extensions found and usable.
        available_kernels: kernel tables of this build that run here, best first.
    """

    cpu_features: tuple[str, ...]
    available_kernels: tuple[str, ...]


def product_names(kernels: str) -> tuple[str, str, str]:
    """What multiplies the rows of prompts: with quantized weights, with F16 and F32, with BF16."""
    return _core.product_names(kernels)


def read_kind(format_name: str) -> str:
    """Which of `ops.cpu.read_way.READ_KINDS` reads a format."""
    return _core.read_kind(format_name)


def machine_info() -> MachineInfo:
    """Report processor features and kernels of the native extension."""
    return MachineInfo(tuple(_core.cpu_features()), tuple(_core.available_kernels()))
