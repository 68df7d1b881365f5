"""Progress callbacks for measurements during loading, most of them for a placement."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PlacementProgress"]


@dataclass(frozen=True, slots=True)
class PlacementProgress:
    """Callbacks, called with (done, in all).

    Attributes:
        speeds: progress of measuring this machine (device speeds, prefetch settings).
        statistics: progress of counting neurons, in layers.
        kernels: progress of compiling GPU kernels; how many they are in all is an estimate.
    """

    speeds: Callable[[int, int], None] | None = None
    statistics: Callable[[int, int], None] | None = None
    kernels: Callable[[int, int], None] | None = None
