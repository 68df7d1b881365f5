"""Callbacks for the progress of the measurements before a placement."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PlacementProgress"]


@dataclass(frozen=True, slots=True)
class PlacementProgress:
    """Callables, each called with (done, in all), or None.

    Attributes:
        speeds: while the speeds of this machine are measured.
        statistics: while neurons are counted, in layers.
    """

    speeds: Callable[[int, int], None] | None = None
    statistics: Callable[[int, int], None] | None = None
