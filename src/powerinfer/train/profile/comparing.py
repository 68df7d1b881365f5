"""The overlap of two profiles: neurons that are hot in both."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.errors import ShapeError

__all__ = ["TOPS", "Overlap", "hot_overlaps"]

TOPS = (0.1, 0.2, 0.5)
"""Shares of the neurons that are compared."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The share of the hottest neurons of one profile that is among the hottest of another.

    The hottest are the share `top` of the neurons: of each layer's, and of all together.
    """

    top: float
    layers: tuple[float, ...]
    all: float


def hot_overlaps(
    ours: npt.NDArray[np.floating], theirs: npt.NDArray[np.floating]
) -> tuple[Overlap, ...]:
    """Compare two profiles [num_layers, num_neurons] for each share of `TOPS`.

    Only the order of the numbers matters; of equal ones the lower neuron counts as hotter.
    """
    if ours.shape != theirs.shape:
        raise ShapeError(
            f"profiles of {ours.shape[0]} layers of {ours.shape[1]} neurons and of "
            f"{theirs.shape[0]} of {theirs.shape[1]} cannot be compared"
        )
    return tuple(
        Overlap(
            top,
            tuple(_overlap(*layer, top) for layer in zip(ours, theirs, strict=True)),
            _overlap(ours.reshape(-1), theirs.reshape(-1), top),
        )
        for top in TOPS
    )


def _overlap(ours: npt.NDArray[np.floating], theirs: npt.NDArray[np.floating], top: float) -> float:
    count = max(1, round(top * len(ours)))
    common = np.intersect1d(_hottest(ours, count), _hottest(theirs, count), assume_unique=True)
    return len(common) / count


def _hottest(frequency: npt.NDArray[np.floating], count: int) -> npt.NDArray[np.intp]:
    return np.argsort(-frequency, kind="stable")[:count]
