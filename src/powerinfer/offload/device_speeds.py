"""Speeds of this machine's devices, measured once and stored in the user's cache folder.

They feed the cost model of placements. Without a GPU those of a documented card are assumed, so
that this machine can make plans for another.
"""

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from powerinfer.errors import OutOfDeviceMemoryError
from powerinfer.offload.devices import Device
from powerinfer.placement.cost_model import CostModel, DeviceSpeed, GPUSpeed
from powerinfer.sidecar import Field
from powerinfer.store.measurements import MeasurementFile, cpu_title

if TYPE_CHECKING:
    from powerinfer.ops.cpu.ops import NativeOps

__all__ = ["ASSUMED_GPU", "CPU_SPEEDS", "GPU_SPEEDS", "Speeds", "machine_speeds"]

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

_log = logging.getLogger(__name__)


# The card of the paper's larger machine, from its data sheet: 1008 GB/s, of which kernels reach 85
# % for contiguous rows and 60 % for scattered rows; PCIe 4.0 x16 moves 22 GB/s in practice. Part of
# a layer is about five kernels of 2 us each in a recorded graph, and a hand-off by memory
# operations takes about 15 us: expected, not measured. A run of recorded layers copies the residual
# stream in and out (10 us each: the latency of a copy of any size), launches its graph of some
# hundred nodes (15 us) and waits for it from Python (25 us).
ASSUMED_GPU = "NVIDIA RTX 4090 (assumed)"
_ASSUMED = GPUSpeed(DeviceSpeed(8.5e11, 6e11, 1e-5), 1.5e-5, 2.2e10, 6e-5)


@dataclass(frozen=True, slots=True)
class Speeds:
    """The cost model of a machine.

    Attributes:
        cpu: processor name and thread count.
        is_gpu_assumed: there was no GPU to measure, or no memory left on it to measure with.
    """

    cost: CostModel
    cpu: str
    gpu: str
    is_gpu_assumed: bool


def machine_speeds(
    ops: "NativeOps", format_name: str, device: Device | None, progress: Progress | None = None
) -> Speeds:
    """Load the speeds of this machine, or measure them.

    Args:
        format_name: format of the FFN weights; the speed of kernels depends on it.
        device: the GPU; speeds of an assumed one are used for None or an interpreted device.
    """
    cpu_name = cpu_title(ops.threads, ops.kernels)
    cpu = _cpu(ops, format_name, cpu_name, progress)
    if device is None or device.is_interpreted:
        side, gpu_name, is_assumed = _ASSUMED, ASSUMED_GPU, True
    else:
        found = _gpu(device, ops, format_name, cpu_name, progress)
        side, is_assumed = found or _ASSUMED, found is None
        gpu_name = ASSUMED_GPU if is_assumed else device.title
    return Speeds(side.beside(cpu), cpu_name, gpu_name, is_assumed)


def _cpu(
    ops: "NativeOps", format_name: str, cpu_name: str, progress: Progress | None
) -> DeviceSpeed:
    name = f"{cpu_name}, {format_name} weights"
    stored = CPU_SPEEDS.recall(name)
    if stored is not None:
        return stored
    from powerinfer.ops.cpu.speed import measure_native_speed

    _log.info("measuring how fast this CPU reads weights: %s", name)
    measured = measure_native_speed(ops, format_name, progress)
    CPU_SPEEDS.keep(name, measured)
    return measured


def _gpu(
    device: Device, ops: "NativeOps", format_name: str, cpu_name: str, progress: Progress | None
) -> GPUSpeed | None:
    """Load or measure the GPU's speeds; None if it has no memory left to measure with."""
    name = f"{device.title} with {cpu_name}, {format_name} weights"
    stored = GPU_SPEEDS.recall(name)
    if stored is not None:
        return stored
    from powerinfer.ops.gpu.memory import naming_gpu_failure, release_cached
    from powerinfer.ops.hybrid.speed import measure_gpu_speed

    _log.info("measuring how fast the GPU reads weights: %s", name)
    try:
        with naming_gpu_failure():
            measured = measure_gpu_speed(device.name, ops, format_name, progress)
    except OutOfDeviceMemoryError as error:
        _log.warning("the GPU was not measured (%s): assuming the speeds of %s", error, ASSUMED_GPU)
        return None
    finally:
        release_cached()
    GPU_SPEEDS.keep(name, measured)
    return measured


def _decode_gpu(field: Field) -> GPUSpeed:
    return GPUSpeed(
        _decode_cpu(field["gpu"]),
        field["handoff_s"].number(),
        field["transfer_bytes_per_s"].number(),
        field["run_s"].number(),
    )


def _decode_cpu(field: Field) -> DeviceSpeed:
    names = ("read_bytes_per_s", "gather_bytes_per_s", "launch_s")
    return DeviceSpeed(*(field[name].number() for name in names))


CPU_SPEEDS = MeasurementFile("cpu", asdict, _decode_cpu, version=3)
GPU_SPEEDS = MeasurementFile("gpu", asdict, _decode_gpu, version=3)
