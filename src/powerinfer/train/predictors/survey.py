"""A first look at a model: how often each neuron fires, and how much it then adds."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from powerinfer._replacing import replacing
from powerinfer.calibration.firing import FiringLayer, watch_firing
from powerinfer.calibration.ground_truth import neuron_values, token_chunks
from powerinfer.calibration.routing import Routing
from powerinfer.calibration.window_pass import batches
from powerinfer.errors import PowerInferError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.models import Model
from powerinfer.quant import get_format
from powerinfer.values import FloatArray, IntArray

__all__ = ["Survey", "load_survey", "make_survey", "save_survey"]

# Enough to tell layers apart and to weigh neurons; what is seen stays in memory.
_TOKENS = 4096
_BATCH_WINDOWS = 4
_DECODED_BYTES = 1 << 26


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Statistics of all layers on a sample of the text.

    Attributes:
        densities: f32[num_layers], share of the neurons that fire.
        weights: f32[num_layers, num_neurons], mean square of what each adds when it fires; for one
            that never did, the mean of its layer.
        largest: f32[num_layers], largest magnitude of the predictors' inputs.
    """

    densities: FloatArray
    weights: FloatArray
    largest: FloatArray


def make_survey(model: Model, file: GGUFFile, windows: IntArray) -> Survey:
    """Run an even sample of windows i32[num_windows, window] through a model.

    The model has no experts and runs on the CPU with `exact` sparsity.
    """
    step = max(1, windows.size // _TOKENS)
    chosen = windows[::step]
    counts = _Counts(model)
    for batch in batches(chosen, _BATCH_WINDOWS):
        watch_firing(model, batch, counts.see)
    fired = np.maximum(counts.fired, 1)
    norms = np.stack([_row_squares(file, number) for number in range(model.config.num_layers)])
    squares = counts.squares / fired * norms
    has_fired = counts.fired > 0
    typical = (squares * has_fired).sum(1) / np.maximum(has_fired.sum(1), 1)
    return Survey(
        densities=(counts.fired.mean(1) / chosen.size).astype(np.float32),
        weights=np.where(has_fired, squares, typical[:, np.newaxis]).astype(np.float32),
        largest=counts.largest,
    )


class _Counts:
    """Sums over tokens."""

    def __init__(self, model: Model) -> None:
        shape = (model.config.num_layers, model.config.num_neurons)
        self._model = model
        self.fired = np.zeros(shape, np.int64)
        self.squares = np.zeros(shape, np.float64)
        self.largest = np.zeros(shape[0], np.float32)

    def see(self, layer: FiringLayer) -> None:
        """Add the tokens of a batch."""
        number, ops = layer.number, self._model.ops
        ffn = self._model.weights.layers[number].ffn
        routing = Routing.of(ops, ffn, layer.x, None, np.ones(len(layer.x), bool))
        for chunk in token_chunks(len(layer.x)):
            _, values = neuron_values(ops, ffn, layer.x[chunk], routing.rows(chunk))
            self.fired[number] += np.count_nonzero(values, axis=0)
            self.squares[number] += np.square(values, dtype=np.float64).sum(0)
        self.largest[number] = max(self.largest[number], np.abs(layer.raw).max())


def _row_squares(file: GGUFFile, number: int) -> FloatArray:
    """Squared length of each neuron's row of down: f32[num_neurons]."""
    transposed = file.tensors.get(f"blk.{number}.ffn_down_t.weight")
    if transposed is not None:
        return np.concatenate([np.square(rows).sum(1) for rows in _decoded(transposed)])
    plain = file.tensor(f"blk.{number}.ffn_down.weight")
    total = np.zeros(plain.shape[-1], np.float32)
    for rows in _decoded(plain):
        total += np.square(rows).sum(0)
    return total


def _decoded(tensor: Tensor) -> Iterator[FloatArray]:
    """Rows of a matrix in blocks of a bounded size: f32[num_rows, columns] each."""
    columns = tensor.shape[-1]
    count = max(1, _DECODED_BYTES // (4 * columns))
    form = get_format(tensor.format)
    for start in range(0, len(tensor.rows), count):
        yield form.decode(tensor.rows[start : start + count].reshape(-1)).reshape(-1, columns)


def save_survey(path: Path, survey: Survey) -> None:
    """Write a survey to a file, atomically."""
    with replacing(path, error=PowerInferError) as file:
        np.savez(file, **asdict(survey))


def load_survey(path: Path) -> Survey | None:
    """Read what `save_survey` wrote; None if there is none."""
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as found:
            return Survey(found["densities"], found["weights"], found["largest"])
    except Exception as error:  # noqa: BLE001 - a damaged archive may make numpy raise anything
        raise PowerInferError(
            f"{path}: is damaged ({error!s:.100}); remove the folder to start again"
        ) from None
