"""Measures predictors on held-out text: one layer's while it is trained, all of them at the end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from powerinfer.calibration.firing import FiringLayer, watch_firing
from powerinfer.calibration.ground_truth import GroundTruth
from powerinfer.calibration.recall import LayerRecall, RecallMeter
from powerinfer.calibration.window_pass import batch_size, batches, run_windows
from powerinfer.gguf import Tensor
from powerinfer.models import Model, uniform, with_predictors
from powerinfer.train.predictors.folder import LayerReport
from powerinfer.train.predictors.goal import THRESHOLD
from powerinfer.train.predictors.layer_data import HalfArray
from powerinfer.values import FloatArray, IntArray

__all__ = ["OutputError", "attach_predictors", "measure_predictors"]

_KIND = "mlp"
# Enough to tell errors apart that differ by a tenth.
_ERROR_TOKENS = 2048
# Tokens scored at once.
_CHUNK = 256


def attach_predictors(
    model: Model, predictors: Sequence[tuple[HalfArray, HalfArray]], threshold: float
) -> Model:
    """The same model with predictors as PowerInfer's files have them.

    Each layer has f16[rank, hidden_size] and f16[num_neurons, rank].
    """
    mlp = tuple(
        (_tensor(f"blk.{number}.fc1.weight", fc1), _tensor(f"blk.{number}.fc2.weight", fc2))
        for number, (fc1, fc2) in enumerate(predictors)
    )
    weights = replace(model.weights, mlp=mlp, mlp_problem=None)
    own = replace(model, weights=weights, mlp_threshold=threshold)
    return with_predictors(own, uniform(_KIND, len(mlp)), name=_KIND)


def _tensor(name: str, matrix: HalfArray) -> Tensor:
    data = np.ascontiguousarray(matrix, "<f2").reshape(-1).view(np.uint8)
    return Tensor(name, matrix.shape, "f16", data, Path(name))


def measure_predictors(
    model: Model, windows: IntArray, progress: Callable[[int, int], None]
) -> list[LayerReport]:
    """Run text i32[num_windows, window] through a model with predictors; count what they find."""
    meter = RecallMeter(model)
    done = 0
    for batch in batches(windows, batch_size(windows.shape[1])):
        run_windows(model, batch, meter)
        done += len(batch)
        progress(done, len(windows))
    weights = model.weights.mlp
    return [
        _report(sums, fc1.shape[0]) for sums, (fc1, _) in zip(meter.layers, weights, strict=True)
    ]


def _report(sums: LayerRecall, rank: int) -> LayerReport:
    """Figures of a layer; a share of nothing is 1, because nothing was missed or let pass."""
    return LayerReport(
        active=sums.firing_share or 0.0,
        rank=rank,
        recall=1.0 if sums.recall is None else sums.recall,
        precision=1.0 if sums.precision is None else sums.precision,
        density=sums.predicted_share or 0.0,
        ffn_error=sums.ffn_error or 0.0,
    )


class OutputError:
    """Measures predictors of one layer on a sample of text, against the layer's own neurons."""

    def __init__(self, model: Model, windows: IntArray, number: int) -> None:
        """Take a layer, which runs when it is first asked for, and held-out text to sample evenly.

        The model has no experts and runs on the CPU with `exact` sparsity.
        """
        count = max(1, _ERROR_TOKENS // windows.shape[1])
        self._windows = windows[:: -(-len(windows) // count)]
        self._model, self._number = model, number
        self._truth: tuple[GroundTruth, FloatArray] | None = None

    def __call__(self, fc1: HalfArray, fc2: HalfArray) -> float:
        """Relative error of the output with f16[rank, hidden_size] and f16[num_neurons, rank]."""
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

        for batch in batches(self._windows, 1):
            watch_firing(self._model, batch, see, num_layers=self._number + 1)
        x, raw = (np.concatenate(part) for part in zip(*inputs, strict=True))
        ffn = self._model.weights.layers[self._number].ffn
        return GroundTruth(self._model.ops, ffn, x), raw
