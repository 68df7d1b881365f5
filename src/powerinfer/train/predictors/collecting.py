"""Runs text through a model and writes down what its predictors will see."""

import errno
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from io import FileIO
from types import TracebackType
from typing import Self

import numpy as np

from powerinfer.calibration.firing import FiringLayer, watch_firing
from powerinfer.errors import PowerInferError
from powerinfer.models import Model
from powerinfer.train.predictors.cache import Cache, LayerShape
from powerinfer.values import FloatArray, IntArray

__all__ = ["collect", "input_scales"]

_BATCH_TOKENS = 2048
_SAVE_S = 10.0
_LARGEST_F16 = 65504.0
# The sample that scales come from may have missed the largest number.
_ROOM = 16.0


def input_scales(largest: FloatArray) -> list[float]:
    """Powers of two by which inputs are divided, one per layer, so that they fit f16.

    Args:
        largest: f32[num_layers], largest magnitude in a sample.
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
    """Write inputs and firing neurons of some layers; goes on where a killed run stood.

    Args:
        model: on the CPU, with `exact` sparsity.
        windows: i32[num_windows, window], the whole text.
        layers: neighbouring ones.
        cache: to write to.
        scales: of all layers, see `input_scales`.
        progress: called with (windows done, windows in all).

    Raises:
        NumericsError: the model makes NaN or infinity.
        PowerInferError: the disk is full.
    """
    shape = LayerShape(windows.size, model.config.hidden_size, model.config.num_neurons)
    known, done = cache.collected()
    if known != layers:
        cache.remove_layers_but(())
        for number in layers:
            cache.reserve(number, shape)
        cache.note_collected(layers, 0)
        done = 0
    size = max(1, _BATCH_TOKENS // windows.shape[1])
    with _Writer(cache, layers, shape, scales) as writer:
        saved_at = time.monotonic()
        for start in range(done, len(windows), size):
            batch = np.ascontiguousarray(windows[start : start + size])
            writer.begin(start * windows.shape[1])
            watch_firing(model, batch, writer.see, num_layers=layers.stop)
            done = start + len(batch)
            if done == len(windows) or time.monotonic() - saved_at >= _SAVE_S:
                writer.sync()
                cache.note_collected(layers, done)
                saved_at = time.monotonic()
            progress(done, len(windows))


class _Writer:
    """Writes batches of tokens into the files of some layers."""

    def __init__(
        self, cache: Cache, layers: range, shape: LayerShape, scales: Sequence[float]
    ) -> None:
        self._cache = cache
        self._layers = layers
        self._shape = shape
        self._scales = scales
        self._token = 0
        self._stack = ExitStack()
        self._files: dict[tuple[int, str], FileIO] = {}

    def __enter__(self) -> Self:
        for number in self._layers:
            for end in ("inputs", "fired"):
                try:
                    file = self._cache.path(f"layer_{number}.{end}").open("r+b", 0)
                except OSError as error:
                    raise self._problem(error) from None
                self._files[number, end] = self._stack.enter_context(file)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def begin(self, token: int) -> None:
        """The next layers to be seen are of tokens from this one on."""
        self._token = token

    def see(self, layer: FiringLayer) -> None:
        """Write one layer of a batch; those before the group are left out."""
        if layer.number not in self._layers:
            return
        scaled = layer.raw / np.float32(self._scales[layer.number])
        inputs = np.clip(scaled, -_LARGEST_F16, _LARGEST_F16).astype("<f2")
        self._write(layer.number, "inputs", 2 * self._shape.hidden_size, inputs.tobytes())
        self._write(layer.number, "fired", self._shape.fired_bytes, layer.fired.tobytes())

    def sync(self) -> None:
        """Wait until everything is on disk."""
        try:
            for file in self._files.values():
                os.fsync(file.fileno())
        except OSError as error:
            raise self._problem(error) from None

    def _write(self, number: int, end: str, width: int, data: bytes) -> None:
        file = self._files[number, end]
        try:
            file.seek(self._token * width)
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._problem(error) from None

    def _problem(self, error: OSError) -> PowerInferError:
        return PowerInferError(
            f"{self._cache.folder}: cannot write: {error.strerror or error}; the same command goes "
            "on from here"
        )
