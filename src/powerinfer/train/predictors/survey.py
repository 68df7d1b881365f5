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
    """Statistics of all layers with predictors, in their order, on a sample of the text.

    Attributes:
        densities: f32[num_layers], share of the neurons that fire; with experts, of those of the
            experts that tokens are given to.
        weights: f32[num_layers, num_neurons], mean square of what each adds when it fires; for one
            that never did, the mean of its layer.
        largest: f32[num_layers], largest magnitude of the predictors' inputs.
    """

    densities: FloatArray
    weights: FloatArray
    largest: FloatArray


def make_survey(model: Model, file: GGUFFile, windows: IntArray) -> Survey:
    """Run an even sample of windows i32[num_windows, window] through a model.

    The model runs on the CPU with `exact` sparsity.
    """
    step = max(1, windows.size // _TOKENS)
    chosen = windows[::step]
    counts = _Counts(model)
    for batch in batches(chosen, _BATCH_WINDOWS):
        watch_firing(model, batch, counts.see)
    fired = np.maximum(counts.fired, 1)
    num_experts = model.config.num_experts
    numbers = model.config.counted_layers
    norms = np.stack([_row_squares(file, number, num_experts) for number in numbers])
    squares = counts.squares / fired * norms
    has_fired = counts.fired > 0
    typical = (squares * has_fired).sum(1) / np.maximum(has_fired.sum(1), 1)
    return Survey(
        densities=(counts.fired.sum(1) / counts.candidates).astype(np.float32),
        weights=np.where(has_fired, squares, typical[:, np.newaxis]).astype(np.float32),
        largest=counts.largest,
    )


class _Counts:
    """Sums over tokens."""

    def __init__(self, model: Model) -> None:
        self._places = {number: n for n, number in enumerate(model.config.counted_layers)}
        shape = (len(self._places), model.config.num_neurons)
        self._model = model
        self.candidates = np.zeros(shape[0], np.int64)
        self.fired = np.zeros(shape, np.int64)
        self.squares = np.zeros(shape, np.float64)
        self.largest = np.zeros(shape[0], np.float32)

    def see(self, layer: FiringLayer) -> None:
        """Add the tokens of a batch; a layer without predictors is left out."""
        place, ops = self._places.get(layer.number), self._model.ops
        if place is None:
            return
        ffn = self._model.weights.layers[layer.number].ffn
        routing = Routing.of(ops, ffn, layer.x, layer.router, np.ones(len(layer.x), bool))
        for chunk in token_chunks(len(layer.x)):
            own = routing.rows(chunk)
            _, values = neuron_values(ops, ffn, layer.x[chunk], own)
            self.fired[place] += own.count(values != 0)
            self.squares[place] += own.total(np.square(own.weigh(values)))
        self.candidates[place] += len(layer.x) * routing.num_candidates
        seen = layer.seen(self._model.architecture.predictor_input)
        self.largest[place] = max(self.largest[place], np.abs(seen).max())


def _row_squares(file: GGUFFile, number: int, num_experts: int) -> FloatArray:
    """Squared length of each neuron's row of down: f32[num_neurons]."""
    name, tensors = f"blk.{number}.ffn_down", file.tensors
    merged = f"{name}_exps" if num_experts else name
    turned = tensors.get(f"{merged}_t.weight")
    if turned is not None:
        return np.concatenate([np.square(rows).sum(1) for rows in _decoded(turned)])
    if f"{merged}.weight" in tensors or not num_experts:
        plain = [file.tensor(f"{merged}.weight")]
    else:
        plain = [file.tensor(f"{name}.{expert}.weight") for expert in range(num_experts)]
    return np.concatenate([_column_squares(tensor) for tensor in plain])


def _column_squares(tensor: Tensor) -> FloatArray:
    """Squared length of each column of a matrix, or of each of several: f32[num_columns]."""
    rows, columns = tensor.shape[-2:]
    total = np.zeros((len(tensor.rows) // rows, columns), np.float32)
    first = 0
    for block in _decoded(tensor):
        matrices = np.arange(first, first + len(block)) // rows
        for matrix in np.unique(matrices):
            total[matrix] += np.square(block[matrices == matrix]).sum(0)
        first += len(block)
    return total.reshape(-1)


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
