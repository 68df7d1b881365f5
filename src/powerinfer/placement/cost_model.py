"""How fast two devices and the link between them are, from which the time of a step follows.

Paper: "Offline neuron placement" (arXiv 2312.12456). Decoding is bound by memory, so the time of
a part is what it reads over the speed of the device, plus what launching it costs.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PlacementError

__all__ = ["CostModel", "DeviceSpeed"]

_Float = npt.NDArray[np.float64]


def _check_positive(value: object, allowed_zero: tuple[str, ...]) -> None:
    for field in fields(value):  # type: ignore[arg-type]
        number = getattr(value, field.name)
        if not isinstance(number, int | float):
            continue
        is_good = number >= 0 if field.name in allowed_zero else number > 0
        if not (math.isfinite(number) and is_good):
            raise PlacementError(
                f"{field.name} of a cost model is {number}; it must be finite and "
                + ("not negative" if field.name in allowed_zero else "greater than 0")
            )


@dataclass(frozen=True, slots=True)
class DeviceSpeed:
    """How fast a device reads weights while it computes with them.

    Attributes:
        read_bytes_per_s: of matrices in one piece.
        gather_bytes_per_s: of the rows of scattered neurons.
        launch_s: of each part of a layer (attention, predictor, neurons) and of the output head,
            beyond its reading: its kernels in a recorded graph, or waking the CPU's team.
    """

    read_bytes_per_s: float
    gather_bytes_per_s: float
    launch_s: float

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            PlacementError: a speed is not positive, or a time negative.
        """
        _check_positive(self, ("launch_s",))

    def part_s(self, read_bytes: float) -> float:
        """Seconds of a part that is read in one piece; 0 for an absent part."""
        return self.launch_s + read_bytes / self.read_bytes_per_s if read_bytes else 0.0

    def neurons_s(
        self, count: _Float, asked: _Float, expected: _Float, idle_bytes: int, active_bytes: int
    ) -> _Float:
        """Seconds of `count` neurons, of which `asked` are asked and `expected` fire; 0 of none."""
        idle = asked * idle_bytes / self.read_bytes_per_s
        active = expected * active_bytes / self.gather_bytes_per_s
        return np.where(count > 0, self.launch_s + idle + active, 0.0)


@dataclass(frozen=True, slots=True)
class CostModel:
    """Both devices and the link between them.

    Attributes:
        gpu: measured, or a data sheet's.
        cpu: as measured with the threads that decode.
        handoff_s: from the GPU having written the input to it having read the CPU's answer, less
            the CPU's computing.
        transfer_bytes_per_s: of pinned host memory to the GPU, for prefill and moving neurons; a
            decode step copies next to nothing.
        run_s: of each run of consecutive layers on the GPU, beyond its layers: the stream is
            copied in, the recorded graph is launched, waited for, and the stream is copied out.
    """

    gpu: DeviceSpeed
    cpu: DeviceSpeed
    handoff_s: float
    transfer_bytes_per_s: float
    run_s: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            PlacementError: a speed is not positive, or a time negative.
        """
        _check_positive(self, ("handoff_s", "run_s"))
