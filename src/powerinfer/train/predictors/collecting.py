"""Runs text through a model and records what its predictors will see."""

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.firing import Bits, FiringLayer, unpack, watch_firing
from powerinfer.calibration.ground_truth import token_chunks
from powerinfer.calibration.routing import Routing
from powerinfer.calibration.window_pass import batch_size, batches
from powerinfer.errors import PowerInferError
from powerinfer.models import Model
from powerinfer.train.predictors.cache import Cache, LayerShape
from powerinfer.train.predictors.sizes import PredictorSizes
from powerinfer.values import FloatArray, IntArray

__all__ = ["chosen_bits", "collect", "input_scales"]

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


def chosen_bits(fired: Bits, routing: Routing) -> Bits:
    """Bits of the neurons of each token's experts only; each expert begins a byte.

    `fired` is u8[num_tokens, ceil(num_neurons / 8)]; the result u8[num_tokens, num_used *
    ceil(expert_size / 8)].
    """
    num_tokens, num_used = routing.experts.shape
    size = routing.num_neurons // routing.num_experts
    if size % 8 == 0:
        by_expert = fired.reshape(num_tokens, routing.num_experts, size // 8)
        own = by_expert[np.arange(num_tokens)[:, np.newaxis], routing.experts]
        return own.reshape(num_tokens, -1)
    parts = []
    for chunk in token_chunks(num_tokens):
        own = routing.rows(chunk).take(unpack(fired[chunk], routing.num_neurons))
        bits = np.packbits(own.reshape(-1, num_used, size), axis=2, bitorder="little")
        parts.append(bits.reshape(len(bits), -1))
    return np.concatenate(parts)


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
    sparsity. `layers` are places among `ModelConfig.counted_layers`, and `scales` those of all
    these, see `input_scales`.
    """
    shape = LayerShape(windows.size, PredictorSizes.of(model.config, model.architecture))
    numbers = model.config.counted_layers
    known, done = cache.collected()
    if known != layers:
        cache.remove_layers_but(())
        for place in layers:
            cache.reserve(numbers[place], shape)
        cache.note_collected(layers, 0)
        done = 0
    chosen = {numbers[place]: scales[place] for place in layers}
    with closing(_Writer(model, cache, shape, chosen)) as writer:
        saved_at = time.monotonic()
        for batch in batches(windows[done:], batch_size(windows.shape[1])):
            writer.token = done * windows.shape[1]
            watch_firing(model, batch, writer.see, num_layers=max(chosen) + 1)
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
        self, model: Model, cache: Cache, shape: LayerShape, scales: Mapping[int, float]
    ) -> None:
        """Take the scale of each layer to write, by its number."""
        self.token = 0
        self._model = model
        self._cache = cache
        self._scales = scales
        with ExitStack() as stack, self._on_disk():
            self._files = {
                (number, end): (stack.enter_context(path.open("r+b", 0)), width)
                for number in scales
                for end, width in shape.widths.items()
                for path in [cache.path(f"layer_{number}.{end}")]
            }
            self.close = stack.pop_all().close

    def see(self, layer: FiringLayer) -> None:
        """Write one layer of a batch; layers before the group are skipped."""
        if layer.number not in self._scales:
            return
        seen = layer.seen(self._model.architecture.predictor_input)
        scaled = seen / np.float32(self._scales[layer.number])
        self._write(layer, "inputs", np.clip(scaled, -_LARGEST_F16, _LARGEST_F16).astype("<f2"))
        ffn = self._model.weights.layers[layer.number].ffn
        if ffn.router is None:
            self._write(layer, "fired", layer.fired)
            return
        as_prompt = np.ones(len(layer.x), bool)
        routing = Routing.of(self._model.ops, ffn, layer.x, layer.router, as_prompt)
        self._write(layer, "fired", chosen_bits(layer.fired, routing))
        self._write(layer, "experts", routing.experts.astype("<i2"))

    def _write(self, layer: FiringLayer, end: str, values: npt.NDArray[np.generic]) -> None:
        file, width = self._files[layer.number, end]
        data = values.tobytes()
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
