"""What an FFN's output loses if only the neurons ran that a predictor lets pass."""

import numpy as np

from powerinfer.calibration.firing import FiringLayer, watch_firing
from powerinfer.calibration.ground_truth import GroundTruth
from powerinfer.models import Model
from powerinfer.train.predictors.goal import THRESHOLD
from powerinfer.train.predictors.layer_data import HalfArray
from powerinfer.values import FloatArray, IntArray

__all__ = ["OutputError"]

# Enough to tell errors apart that differ by a tenth.
_TOKENS = 2048
# Tokens scored at once.
_CHUNK = 256


class OutputError:
    """Measures predictors of one layer on a sample of text, against the layer's own neurons."""

    def __init__(self, model: Model, windows: IntArray, number: int) -> None:
        """Remember a layer; it is run when first asked for.

        Args:
            model: on the CPU, with `exact` sparsity and no experts.
            windows: i32[num_windows, window], held-out text; of it a sample is taken, evenly.
            number: of the layer.
        """
        count = max(1, _TOKENS // windows.shape[1])
        self._windows = np.ascontiguousarray(windows[:: -(-len(windows) // count)])
        self._model, self._number = model, number
        self._truth: tuple[GroundTruth, FloatArray] | None = None

    def __call__(self, fc1: HalfArray, fc2: HalfArray) -> float:
        """Relative error of the FFN's output, see `GroundTruth.ffn_error`.

        Args:
            fc1: f16[rank, hidden_size].
            fc2: f16[num_neurons, rank].

        Raises:
            NumericsError: the model makes NaN or infinity.
        """
        if self._truth is None:
            self._truth = self._run()
        truth, raw = self._truth
        first, second = (matrix.astype(np.float32).T for matrix in (fc1, fc2))
        parts = [raw[start : start + _CHUNK] for start in range(0, len(raw), _CHUNK)]
        passes = [np.maximum(part @ first, 0) @ second >= THRESHOLD for part in parts]
        return truth.ffn_error(np.concatenate(passes)).value

    def _run(self) -> tuple[GroundTruth, FloatArray]:
        inputs: list[tuple[FloatArray, FloatArray]] = []

        def see(layer: FiringLayer) -> None:
            if layer.number == self._number:
                inputs.append((layer.x.copy(), layer.raw.copy()))

        for window in self._windows:
            watch_firing(self._model, window[np.newaxis], see, num_layers=self._number + 1)
        x, raw = (np.concatenate(part) for part in zip(*inputs, strict=True))
        ffn = self._model.weights.layers[self._number].ffn
        return GroundTruth.measure(self._model.ops, ffn, x), raw
