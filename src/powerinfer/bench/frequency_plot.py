"""The power law of neurons: share of all activations made by the most active ones."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from powerinfer.bench.figures import BLUE, GRAY, ORANGE, Drawing, draw_all
from powerinfer.errors import PowerInferError
from powerinfer.placement.activation_record import ActivationProfile
from powerinfer.predictors.calibration import hot_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FREQUENCY", "FREQUENCY_TITLE", "draw_frequency", "draw_profile"]

FREQUENCY = "activation-frequency"
FREQUENCY_TITLE = "Activations that the most active neurons make"

_HOT = 0.8


def draw_profile(profile: ActivationProfile, folder: Path, *, model: str) -> list[Path]:
    """Plot how unequally the neurons of a profile fire, as PNG and SVG.

    Raises:
        UnsupportedError: matplotlib is not installed.
        PowerInferError: a file cannot be written; the message names it.
    """
    record = profile.record
    drawing = Drawing(FREQUENCY, FREQUENCY_TITLE, partial(draw_frequency, list(profile.counts)))
    facts = (
        model,
        f"{len(record.fired)} layers of {record.num_neurons} neurons",
        f"activation {record.counted.activation}",
        f"{record.num_tokens} tokens of {record.text_names}",
    )
    return draw_all([drawing], folder, facts, error=PowerInferError)


def draw_frequency(layers: Sequence[npt.NDArray[np.int64]], axes: "Axes") -> None:
    """Plot the share of activations made by the hottest neurons: a line per layer and the mean.

    Args:
        layers: i64[num_neurons] per layer, number of tokens for which each neuron fires.
    """
    shares = []
    for number, counts in enumerate(layers):
        falling = np.sort(counts)[::-1].astype(np.float64)
        reached = np.cumsum(falling) / max(1.0, falling.sum())
        shares.append(reached)
        neurons = np.arange(1, len(counts) + 1) / len(counts)
        label = None if number else "one layer"
        axes.plot(100 * neurons, 100 * reached, color=GRAY, alpha=0.5, linewidth=0.8, label=label)
    hot = float(np.mean([hot_share(counts, _HOT) for counts in layers]))
    mean = np.mean(shares, axis=0)
    axes.plot(100 * neurons, 100 * mean, color=BLUE, linewidth=2, label="mean of all layers")
    label = f"{100 * hot:.0f} % of the neurons make {100 * _HOT:.0f} % of the activations"
    axes.axhline(100 * _HOT, color=ORANGE, linestyle=":", label=label)
    axes.axvline(100 * hot, color=ORANGE, linestyle=":")
    axes.set_xlabel("neurons of a layer, those that fire most often first (%)")
    axes.set_ylabel("share of the layer's activations (%)")
    axes.set_xlim(0, 101)
    axes.set_ylim(0, 102)
    axes.legend(loc="lower right")
