"""Thresholds on values of silu and gelu as limits of their arguments, which kernels compare.

Both functions fall from 0 to a minimum and rise from there on: the arguments whose values are small
are all below one limit, except those in an interval around the minimum.
"""

import math
from collections.abc import Callable

import numpy as np

from powerinfer.values import Activation, ActivationKind

__all__ = ["silent_below"]

_NO_DIP = (1.0, 0.0)


def _silu(z: float) -> float:
    return z / (1.0 + math.exp(-z))


def _gelu(z: float) -> float:
    return z / (1.0 + math.exp(-2.0 * math.sqrt(2.0 / math.pi) * (z + 0.044715 * z**3)))


# The function, where it is smallest, and where nothing of it is left in f32.
_SHAPES: dict[ActivationKind, tuple[Callable[[float], float], float, float]] = {
    ActivationKind.SILU: (_silu, -1.278464543, -700.0),
    ActivationKind.GELU: (_gelu, -0.752461425, -20.0),
}


def silent_below(activation: Activation) -> tuple[float, tuple[float, float]]:
    """Limits as f32: arguments below the first do not fire, except those within the second.

    Of a function that is not cut, its own threshold and an empty interval.
    """
    if not activation.is_cut:
        return activation.threshold, _NO_DIP
    function, bottom, far = _SHAPES[activation.kind]

    def limit(silent: float, firing: float) -> float:
        """Return the last f32 that fires on the way from one that does to one that does not."""
        while (middle := (silent + firing) / 2) not in (silent, firing):
            if abs(function(middle)) < activation.threshold:
                silent = middle
            else:
                firing = middle
        rounded = np.float32(firing)
        if (float(rounded) - firing) * (silent - firing) <= 0.0:
            return float(rounded)
        return float(np.nextafter(rounded, np.float32(math.copysign(math.inf, firing - silent))))

    top = limit(0.0, activation.threshold + 1.0)
    if abs(function(bottom)) < activation.threshold:
        return top, _NO_DIP
    return top, (limit(far, bottom), limit(0.0, bottom))
