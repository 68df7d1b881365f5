"""Speeds of two devices and the link between them, which determine the time of a step.

Paper: "Offline neuron placement" (arXiv 2312.12456). Decoding is bound by memory, so the time of
a part is the bytes it reads over the speed of the device, plus a launch time.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PlacementError

__all__ = ["CostModel", "DeviceSpeed", "GPUSpeed"]

_Float = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class _Speeds:
    """Numbers of which speeds are positive, and times at least 0, or PlacementError."""

    def __post_init__(self) -> None:
        for field in fields(self):
            number = getattr(self, field.name)
            if not isinstance(number, int | float):
                continue
            is_speed = field.name.endswith("_per_s")
            if not math.isfinite(number) or number < 0 or (is_speed and not number):
                raise PlacementError(
                    f"{field.name} of a cost model is {number}; it must be finite and "
                    + ("greater than 0" if is_speed else "not negative")
                )


@dataclass(frozen=True, slots=True)
class DeviceSpeed(_Speeds):
    """Speed of a device at reading weights while it computes with them.

    Attributes:
        read_bytes_per_s: speed for contiguous matrices.
        gather_bytes_per_s: speed for the rows of scattered neurons.
        launch_s: time of each part of a layer (attention, predictor, neurons) and of the output
            head besides reading: its kernels in a recorded graph, or waking the CPU's team.
    """

    read_bytes_per_s: float
    gather_bytes_per_s: float
    launch_s: float

    def part_s(self, read_bytes: float) -> float:
        """Return the seconds of a contiguous part; 0 for an absent one."""
        return self.launch_s + read_bytes / self.read_bytes_per_s if read_bytes else 0.0

    def neurons_s(
        self, count: _Float, asked: _Float, expected: _Float, idle_bytes: int, active_bytes: int
    ) -> _Float:
        """Return the seconds of `count` neurons, `asked` of them checked and `expected` firing."""
        idle = asked * idle_bytes / self.read_bytes_per_s
        active = expected * active_bytes / self.gather_bytes_per_s
        return np.where(count > 0, self.launch_s + idle + active, 0.0)


@dataclass(frozen=True, slots=True)
class CostModel(_Speeds):
    """Both devices and the link between them.

    Attributes:
        cpu: measured with the threads that decode.
        handoff_s: from the input of a block on the GPU to its sum with the CPU's result there,
            without any computing of neurons.
        transfer_bytes_per_s: from pinned host memory to the GPU, for prefill and moving neurons; a
            decode step copies next to nothing.
        run_s: overhead of each run of consecutive layers on the GPU: copying the stream in,
            launching the recorded graph and waiting for it, copying the stream out.
    """

    gpu: DeviceSpeed
    cpu: DeviceSpeed
    handoff_s: float
    transfer_bytes_per_s: float
    run_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GPUSpeed(_Speeds):
    """A GPU and its link to the CPU: what is measured of it, see `CostModel`."""

    gpu: DeviceSpeed
    handoff_s: float
    transfer_bytes_per_s: float
    run_s: float

    def beside(self, cpu: DeviceSpeed) -> CostModel:
        """Complete the model with the speed of a CPU."""
        return CostModel(self.gpu, cpu, self.handoff_s, self.transfer_bytes_per_s, self.run_s)
