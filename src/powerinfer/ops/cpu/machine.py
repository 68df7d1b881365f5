"""Capabilities of this machine's processor and this build of the native extension."""

from dataclasses import dataclass

from powerinfer import _core
from powerinfer.errors import DeviceError

__all__ = [
    "MAX_THREADS",
    "MachineInfo",
    "machine_info",
    "product_names",
    "read_kind",
    "release_freed_memory",
    "start_team",
]

MAX_THREADS = 512


@dataclass(frozen=True, slots=True)
class MachineInfo:
    """Capabilities of this machine's processor.

    Attributes:
        cpu_features: instruction-set extensions found and usable.
        available_kernels: kernel tables of this build that run here, best first.
    """

    cpu_features: tuple[str, ...]
    available_kernels: tuple[str, ...]


def product_names(kernels: str) -> tuple[str, str, str]:
    """Name the products of prompt rows: with quantized weights, with F16 and F32, with BF16."""
    return _core.product_names(kernels)


def read_kind(format_name: str) -> str:
    """Return the element of `ops.cpu.prefetch_settings.READ_KINDS` that reads a format."""
    return _core.read_kind(format_name)


def machine_info() -> MachineInfo:
    """Report processor features and kernels of the native extension."""
    return MachineInfo(tuple(_core.cpu_features()), tuple(_core.available_kernels()))


def release_freed_memory() -> None:
    """Give freed memory back to the system, for when a model has gone."""
    _core.release_freed_memory()


def start_team(
    threads: int, kernels: str | None = None, *, joins: bool = False
) -> _core.ThreadTeam:
    """Start threads that run kernels.

    Args:
        threads: members of the team, 1 to 512, the caller included.
        kernels: name from `machine_info().available_kernels`; None takes the best of them.
        joins: share the threads of the others in this process that joined with these arguments.

    Raises:
        DeviceError: this machine or build has no such kernels, the number of threads is out of
            range, or the system refuses that many.
    """
    if not 1 <= threads <= MAX_THREADS:
        raise DeviceError(f"threads must be between 1 and {MAX_THREADS}, got {threads}")
    available = _core.available_kernels()
    if kernels is not None and kernels not in available:
        raise DeviceError(
            f"kernels {kernels!r} do not run on this machine; available: {', '.join(available)}"
        )
    try:
        return _core.ThreadTeam(threads, kernels, joins)
    except RuntimeError as error:  # std::system_error
        raise DeviceError(
            f"cannot start {threads} threads: {error}", remedy="take fewer ({threads})"
        ) from None
