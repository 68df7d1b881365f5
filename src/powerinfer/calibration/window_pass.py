"""Passes of a model over windows of text: how they run, and how a pass measures every layer."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np

from powerinfer.calibration.ffn_inputs import FFNInputs, InputCollector
from powerinfer.errors import NumericsError
from powerinfer.kvcache.state_slots import SLOTS_PER_SEQUENCE
from powerinfer.models import Model
from powerinfer.models.blocks import Observer, Stage, StepControl, StepObserver
from powerinfer.values import FloatArray, IntArray

__all__ = [
    "LayersDone",
    "Measure",
    "WindowPass",
    "batch_size",
    "batches",
    "check_finite",
    "end_after",
    "measure_layers",
    "run_windows",
]

LayersDone = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""

Measure = Callable[[int, FFNInputs], None]
"""``measure(layer, inputs)``: the inputs of a layer's FFN, of all windows one after the other."""

# A pass over few tokens is slow, one over many needs memory for each of them.
_BATCH_TOKENS = 2048


def batch_size(window: int) -> int:
    """Number of windows that one pass should take."""
    return max(1, _BATCH_TOKENS // window)


def batches(windows: Iterable[IntArray], size: int) -> Iterator[IntArray]:
    """Stack windows i32[window] to batches i32[size, window]; the last one may be smaller.

    No window is read before its batch is asked for, so that a run can stop and resume between them.
    """
    left = iter(windows)
    while batch := list(islice(left, size)):
        yield np.array(batch)


def run_windows(model: Model, windows: IntArray, observe: Observer | StepObserver) -> None:
    """Run windows i32[num_windows, window] as prompts, all as one batch, and show the stages.

    No window sees another. An observer should end the pass with `end_after`; a step observer sees
    all layers.
    """
    num_windows, length = windows.shape
    cache = model.new_cache(num_windows * (length + 64), num_slots=SLOTS_PER_SEQUENCE * num_windows)
    parts = [(number, ids, 0) for number, ids in enumerate(windows)]
    batch = cache.batch(parts, [True] * len(parts))
    if isinstance(observe, StepObserver):
        observe = _to_the_last_layer(model, observe.of_step(batch, None))
    model.forward(batch, cache, observe=observe)


def end_after(num_layers: int, stage: Stage, number: int) -> StepControl | None:
    """Stop a pass at the end of its last layer of interest: nobody wants the logits."""
    is_end = stage is Stage.FFN and number + 1 == num_layers
    return StepControl.STOP if is_end else None


def _to_the_last_layer(model: Model, observe: Observer) -> Observer:
    def see(stage: Stage, number: int, x: FloatArray) -> StepControl | None:
        observe(stage, number, x)
        return end_after(model.config.num_layers, stage, number)

    return see


def measure_layers(
    model: Model, windows: IntArray, measure: Measure, progress: LayersDone | None = None
) -> None:
    """Run all windows as one batch and measure each layer when the pass reaches it."""
    num_layers = model.config.num_layers

    def see(number: int, inputs: FFNInputs) -> None:
        measure(number, inputs)
        if progress is not None:
            progress(number + 1, num_layers)

    run_windows(model, windows, WindowPass(see, num_layers))


class WindowPass:
    """An observer that shows the inputs of each FFN and ends the pass after some layers."""

    def __init__(self, see: Measure, num_layers: int) -> None:
        self._see = see
        self._num_layers = num_layers
        self._collector = InputCollector()

    def __call__(self, stage: Stage, number: int, x: FloatArray) -> StepControl | None:
        """See a stage, as every `Observer`."""
        inputs = self._collector.see(stage, x)
        if inputs is not None:
            check_finite(inputs.x, f"the input of the FFN in layer {number}")
            self._see(number, inputs)
        return end_after(self._num_layers, stage, number)


def check_finite(values: FloatArray, what: str) -> None:
    """Raise NumericsError if something that a pass measured holds NaN or infinity."""
    if not np.isfinite(values).all():
        raise NumericsError(
            f"measuring the model: {what} holds NaN or infinity: the weights are damaged, or the "
            "activation is not the model's",
            remedy="name the right one with {activation}",
        )
