"""One pass of a model over windows of text that measures every layer."""

from collections.abc import Callable

import numpy as np

from powerinfer.calibration.ffn_inputs import FFNInputs, InputCollector
from powerinfer.errors import NumericsError
from powerinfer.models import Model
from powerinfer.models.blocks import Observer, Stage, StepControl
from powerinfer.values import FloatArray, IntArray

__all__ = ["LayersDone", "Measure", "check_finite", "measure_layers", "run_windows"]

LayersDone = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""

Measure = Callable[[int, FFNInputs], None]
"""``measure(layer, inputs)``: what the FFN of a layer gets, of all windows one after the other."""


def measure_layers(
    model: Model, windows: IntArray, measure: Measure, progress: LayersDone | None = None
) -> None:
    """Run all windows as one batch and measure each layer when the pass reaches it.

    Args:
        model: to run.
        windows: i32[num_windows, window], token ids; no window sees another.
        measure: called for each layer, in order.
        progress: called after each layer.

    Raises:
        NumericsError: the input of an FFN holds NaN or infinity.
    """
    run_windows(model, windows, _Pass(measure, model.config.num_layers, progress))


def run_windows(model: Model, windows: IntArray, observe: Observer) -> None:
    """Run windows as prompts, all of them as one batch, and show the stages of the pass.

    Args:
        model: to run.
        windows: i32[num_windows, window], token ids; no window sees another.
        observe: should end the pass where it has seen enough: nobody wants the logits.
    """
    cache = model.new_cache(windows.shape[0] * (windows.shape[1] + 64))
    parts = [(number, ids, 0) for number, ids in enumerate(windows)]
    model.forward(cache.batch(parts, [True] * len(parts)), cache, observe=observe)


class _Pass:
    """Observer of the pass, which ends with the last layer: the logits are not needed."""

    def __init__(self, measure: Measure, num_layers: int, progress: LayersDone | None) -> None:
        self._measure = measure
        self._num_layers = num_layers
        self._progress = progress
        self._inputs = InputCollector()

    def __call__(self, stage: Stage, number: int, x: FloatArray) -> StepControl | None:
        inputs = self._inputs.see(stage, x)
        if inputs is not None:
            check_finite(inputs.x, number)
            self._measure(number, inputs)
            if self._progress is not None:
                self._progress(number + 1, self._num_layers)
        is_end = stage is Stage.FFN and number + 1 == self._num_layers
        return StepControl.STOP if is_end else None


def check_finite(x: FloatArray, number: int) -> None:
    """Raise NumericsError if the input of a layer's FFN holds NaN or infinity."""
    if not np.isfinite(x).all():
        raise NumericsError(
            f"measuring the model: the input of the FFN in layer {number} holds NaN or infinity: "
            "the weights are damaged, or the activation is not the model's",
            remedy="name the right one with {activation}",
        )
