"""How fast this machine's devices are, measured once and kept in the user's cache folder.

The cost model of placements reads them. Where there is no GPU a documented one is assumed, so that
plans for another machine can be made here.
"""

import hashlib
import json
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from powerinfer._files import cache_folder, read_small_file, write_atomically
from powerinfer.engine.offload.devices import Device
from powerinfer.errors import DeviceError, OutOfDeviceMemoryError, PlacementError
from powerinfer.placement.cost_model import CostModel, DeviceSpeed

if TYPE_CHECKING:
    from powerinfer.ops.cpu.ops import NativeOps

__all__ = ["ASSUMED_GPU", "Speeds", "machine_speeds"]

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

# Raised when what is measured changes: files of another version are measured again.
_VERSION = 1
_LARGEST_BYTES = 1 << 16
_CPUINFO = Path("/proc/cpuinfo")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _GPUSide:
    """What a GPU, its link and the hand-off to this CPU bring."""

    gpu: DeviceSpeed
    handoff_s: float
    transfer_bytes_per_s: float


# The card of the paper's larger machine, from its data sheet: 1008 GB/s, of which kernels that read
# rows in one piece reach 85 % and scattered rows 60 %; PCIe 4.0 x16 moves 22 GB/s in practice.
# A part of a layer is about five kernels of 2 us each in a recorded graph, and a hand-off by memory
# operations takes about 15 us: expected, not measured.
ASSUMED_GPU = "NVIDIA RTX 4090 (assumed)"
_ASSUMED = _GPUSide(DeviceSpeed(8.5e11, 6e11, 1e-5), 1.5e-5, 2.2e10)


@dataclass(frozen=True, slots=True)
class Speeds:
    """The cost model of a machine.

    Attributes:
        cost: for `placement.problem.PlacementProblem`.
        cpu: name of the processor, with its threads.
        gpu: name of the GPU.
        is_gpu_assumed: there is none here to measure, or it had no room for that.
    """

    cost: CostModel
    cpu: str
    gpu: str
    is_gpu_assumed: bool


def machine_speeds(
    ops: "NativeOps", format_name: str, device: Device | None, progress: Progress | None = None
) -> Speeds:
    """The speeds of this machine, measured now where nobody did.

    Args:
        ops: the CPU backend that decodes.
        format_name: of the FFN's weights: kernels of formats differ in speed.
        device: the GPU; None, or one that is interpreted, is assumed.
        progress: told while something is measured.

    Raises:
        DeviceError: the GPU failed.
    """
    cpu_name = f"{_cpu_name()}, {ops.threads} threads, {ops.kernels} kernels"
    cpu = _cpu(ops, format_name, cpu_name, progress)
    if device is None or device.is_interpreted:
        side, gpu_name, is_assumed = _ASSUMED, ASSUMED_GPU, True
    else:
        found = _gpu(device, ops, format_name, cpu_name, progress)
        side, is_assumed = found or _ASSUMED, found is None
        gpu_name = ASSUMED_GPU if is_assumed else device.title
    cost = CostModel(side.gpu, cpu, side.handoff_s, side.transfer_bytes_per_s)
    return Speeds(cost, cpu_name, gpu_name, is_assumed)


def _cpu(
    ops: "NativeOps", format_name: str, cpu_name: str, progress: Progress | None
) -> DeviceSpeed:
    name = f"{cpu_name}, {format_name} weights"
    stored = _stored("cpu", name)
    if stored is not None:
        with suppress(KeyError, TypeError, PlacementError):
            return _speed(stored)
    from powerinfer.ops.cpu.speed import measure_native_speed

    _log.info("measuring how fast this CPU reads weights: %s", name)
    measured = DeviceSpeed(**asdict(measure_native_speed(ops, format_name, progress)))
    _store("cpu", name, asdict(measured))
    return measured


def _gpu(
    device: Device, ops: "NativeOps", format_name: str, cpu_name: str, progress: Progress | None
) -> _GPUSide | None:
    """What was measured; None where the GPU has no room for measuring."""
    name = f"{device.title} with {cpu_name}, {format_name} weights"
    stored = _stored("gpu", name)
    if stored is not None:
        with suppress(KeyError, TypeError, PlacementError):
            return _side(stored)
    from powerinfer.ops.gpu.devices import release_cached
    from powerinfer.ops.hybrid.speed import measure_gpu_speed

    _log.info("measuring how fast the GPU reads weights: %s", name)
    try:
        measured = measure_gpu_speed(device.name, ops, format_name, progress)
    except OutOfDeviceMemoryError as error:
        _log.warning("the GPU was not measured (%s): taking the speeds of %s", error, ASSUMED_GPU)
        return None
    finally:
        release_cached()
    _store("gpu", name, dict(measured))
    return _side(dict(measured))


def _side(values: dict[str, Any]) -> _GPUSide:
    side = _GPUSide(_speed(values["gpu"]), values["handoff_s"], values["transfer_bytes_per_s"])
    # Checks the numbers as the solver will.
    CostModel(side.gpu, side.gpu, side.handoff_s, side.transfer_bytes_per_s)
    return side


def _speed(values: dict[str, Any]) -> DeviceSpeed:
    names = ("read_bytes_per_s", "gather_bytes_per_s", "launch_s")
    numbers = {name: values[name] for name in names}
    if not all(isinstance(x, int | float) and math.isfinite(x) for x in numbers.values()):
        raise TypeError("speeds are numbers")
    return DeviceSpeed(**numbers)


def _stored(side: str, name: str) -> dict[str, Any] | None:
    """What was measured under this name; None where it was not, or the file is of no use."""
    path = _path(side, name)
    if not path.exists():
        return None
    try:
        data = read_small_file(path, _LARGEST_BYTES, kind="speed measurement", error=DeviceError)
        found = json.loads(data)
    except (DeviceError, ValueError):
        # Nobody made this file on purpose: measuring again repairs it.
        return None
    if not isinstance(found, dict) or found.get("version") != _VERSION or found.get("of") != name:
        return None
    speeds = found.get("speeds")
    return speeds if isinstance(speeds, dict) else None


def _store(side: str, name: str, speeds: dict[str, Any]) -> None:
    """Keep a measurement; where that fails, it is made again next time."""
    content = json.dumps({"version": _VERSION, "of": name, "speeds": speeds}, indent=1)
    with suppress(DeviceError):
        write_atomically(_path(side, name), content.encode() + b"\n", error=DeviceError)


def _path(side: str, name: str) -> Path:
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return cache_folder("speeds") / f"{side}-{digest}.json"


def _cpu_name() -> str:
    with suppress(OSError):
        for line in _CPUINFO.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Processor"):
                return value.strip()
    import platform

    return platform.processor() or platform.machine()
