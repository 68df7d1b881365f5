"""Callbacks for what is measured while a model is loaded, most of it before a placement."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["PlacementProgress"]


@dataclass(frozen=True, slots=True)
class PlacementProgress:
    """Callables, each called with (done, in all), or None.

    Attributes:
        speeds: while this machine is measured: its speeds, and how it reads weights fastest.
        statistics: while neurons are counted, in layers.
    """

    speeds: Callable[[int, int], None] | None = None
    statistics: Callable[[int, int], None] | None = None
