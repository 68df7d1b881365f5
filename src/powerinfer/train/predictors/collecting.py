"""Runs text through a model and records what its predictors will see."""

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import numpy as np

from powerinfer.calibration.firing import FiringLayer, watch_firing
from powerinfer.calibration.window_pass import batch_size, batches
from powerinfer.errors import PowerInferError
from powerinfer.models import Model
from powerinfer.train.predictors.cache import Cache, LayerShape
from powerinfer.values import FloatArray, IntArray

__all__ = ["collect", "input_scales"]

_SAVE_S = 10.0
_LARGEST_F16 = 65504.0
# The sample that scales come from may have missed the largest number.
_ROOM = 16.0


def input_scales(largest: FloatArray) -> list[float]:
    """Powers of two by which inputs are divided to fit f16, one per layer.

    `largest` has f32[num_layers], the largest magnitude in a sample.
    """
    wanted = np.maximum(largest.astype(np.float64), 1e-30) * _ROOM / _LARGEST_F16
    return [float(2.0**power) for power in np.ceil(np.log2(wanted))]


def collect(
    model: Model,
    windows: IntArray,
    layers: range,
    cache: Cache,
    scales: Sequence[float],
    progress: Callable[[int, int], None],
) -> None:
    """Write inputs and firing neurons of neighbouring layers, or resume a killed run.

    `windows` i32[num_windows, window] are the whole text; the model runs on the CPU with `exact`
    sparsity. `scales` are those of all layers, see `input_scales`.
    """
    shape = LayerShape(windows.size, model.config.hidden_size, model.config.num_neurons)
    known, done = cache.collected()
    if known != layers:
        cache.remove_layers_but(())
        for number in layers:
            cache.reserve(number, shape)
        cache.note_collected(layers, 0)
        done = 0
    with closing(_Writer(cache, layers, shape, scales)) as writer:
        saved_at = time.monotonic()
        for batch in batches(windows[done:], batch_size(windows.shape[1])):
            writer.token = done * windows.shape[1]
            watch_firing(model, batch, writer.see, num_layers=layers.stop)
            done += len(batch)
            if done == len(windows) or time.monotonic() - saved_at >= _SAVE_S:
                writer.sync()
                cache.note_collected(layers, done)
                saved_at = time.monotonic()
            progress(done, len(windows))


class _Writer:
    """Writes batches of tokens into the files of some layers.

    Attributes:
        token: number of the first token of the layers seen next.
    """

    def __init__(
        self, cache: Cache, layers: range, shape: LayerShape, scales: Sequence[float]
    ) -> None:
        self.token = 0
        self._cache = cache
        self._layers = layers
        self._scales = scales
        with ExitStack() as stack, self._on_disk():
            self._files = {
                (number, end): (stack.enter_context(path.open("r+b", 0)), width)
                for number in layers
                for end, width in shape.widths.items()
                for path in [cache.path(f"layer_{number}.{end}")]
            }
            self.close = stack.pop_all().close

    def see(self, layer: FiringLayer) -> None:
        """Write one layer of a batch; layers before the group are skipped."""
        if layer.number not in self._layers:
            return
        scaled = layer.raw / np.float32(self._scales[layer.number])
        inputs = np.clip(scaled, -_LARGEST_F16, _LARGEST_F16).astype("<f2")
        for end, data in (("inputs", inputs.tobytes()), ("fired", layer.fired.tobytes())):
            file, width = self._files[layer.number, end]
            with self._on_disk():
                file.seek(self.token * width)
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sync(self) -> None:
        """Wait until everything is on disk."""
        with self._on_disk():
            for file, _ in self._files.values():
                os.fsync(file.fileno())

    @contextmanager
    def _on_disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PowerInferError(
                f"{self._cache.folder}: cannot write: {error.strerror or error}; the same command "
                "goes on from here"
            ) from None
