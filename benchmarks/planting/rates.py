"""How often each planted neuron fires: a power law, as trained models show."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

__all__ = ["FiringRates", "firing_rates", "thresholds", "up_rate"]

Rates = npt.NDArray[np.float64]

_MOST_OFTEN = 0.95
# TurboSparse and Bamboo: 24 to 31 % of the gates pass where 6 to 12 % of the neurons fire.
DRELU_GATE_RATE = 0.28
# How far gate and up of a dReLU neuron look the same way.
DRELU_CORRELATION = 0.85
_NORMAL = NormalDist()


@dataclass(frozen=True)
class FiringRates:
    """Rates of the neurons of one layer, in shuffled order.

    Attributes:
        fires: probability that a neuron is not zero.
        gate: probability that its gate is above zero; the same where there is one branch.
        up: probability that its second branch is above zero, of dReLU; else as `gate`.
    """

    fires: Rates
    gate: Rates
    up: Rates


def firing_rates(
    neurons: int, density: float, exponent: float, random: np.random.Generator, *, is_drelu: bool
) -> FiringRates:
    """Rates that fall with rank^-exponent, have the mean `density` and are shuffled."""
    ranks = (np.arange(neurons) + 1) / neurons
    scale = _solve(lambda a: float(np.clip(a * ranks**-exponent, 0, _MOST_OFTEN).mean()), density)
    fires = np.clip(scale * ranks**-exponent, 0, _MOST_OFTEN)[random.permutation(neurons)]
    if not is_drelu:
        return FiringRates(fires, fires, fires)
    power = _solve(lambda a: -float((fires**a).mean()), -max(DRELU_GATE_RATE, 1.5 * density), 1.0)
    gate = fires**power
    return FiringRates(fires, gate, _up_rates(fires, gate))


def thresholds(rates: Rates, samples: int) -> npt.NDArray[np.float32]:
    """What a normal number exceeds with these probabilities, in standard deviations.

    Mean and deviation are known from `samples` numbers only: Student's distribution with the error
    of the mean added, in the first order of 1 / samples.
    """
    z = np.array([_NORMAL.inv_cdf(1 - rate) for rate in rates], np.float32)
    widened: npt.NDArray[np.float32] = z + (z**3 + 3 * z) / np.float32(4 * samples)
    return widened


def _solve(function: Callable[[float], float], target: float, high: float = 10.0) -> float:
    """Where a rising function takes a value, by bisection in [0, high]."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return low


def _up_rates(fires: Rates, gate: Rates) -> Rates:
    """Rates of the second branch, so that both branches pass with probability `fires`.

    Gate and up are jointly normal; P(up > z and gate > g) is integrated over the gate for a grid
    of rates, and in between interpolated.
    """
    order = np.argsort(fires)
    grid = order[np.linspace(0, len(fires) - 1, 48).astype(int)]
    found = [up_rate(float(fires[i]), float(gate[i])) for i in grid]
    return np.asarray(np.interp(fires, fires[grid], found), np.float64)


def up_rate(fires: float, gate: float) -> float:
    """How often up is above zero, if gate is `gate` and both are `fires` of the time."""
    spread = (1 - DRELU_CORRELATION**2) ** 0.5
    x = np.linspace(_NORMAL.inv_cdf(1 - gate), 6.0, 400)
    weight = np.exp(-x * x / 2) / (2 * np.pi) ** 0.5 * (x[1] - x[0])

    def both(minus_z: float) -> float:
        passing = [_NORMAL.cdf((minus_z + DRELU_CORRELATION * value) / spread) for value in x]
        return float(np.dot(weight, passing))

    return _NORMAL.cdf(_solve(lambda shifted: both(shifted - 6.0), fires, 12.0) - 6.0)
