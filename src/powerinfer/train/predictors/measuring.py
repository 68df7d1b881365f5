"""Measures predictors on held-out text: one layer's while it is trained, all of them at the end."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from powerinfer.calibration.firing import FiringLayer, watch_firing
from powerinfer.calibration.ground_truth import GroundTruth, Mask
from powerinfer.calibration.recall import LayerRecall, RecallMeter
from powerinfer.calibration.routing import Routing
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
    model: Model, predictors: Mapping[int, tuple[HalfArray, HalfArray]], threshold: float
) -> Model:
    """The same model with predictors as model files have them.

    Each layer, by its number, has f16[rank, width] and f16[num_neurons, rank].
    """
    count = model.config.num_experts
    mlp = {
        number: (
            _tensor(f"blk.{number}.fc1.weight", fc1),
            _tensor(f"blk.{number}.fc2_exps.weight", fc2.reshape(count, -1, fc2.shape[1]))
            if count
            else _tensor(f"blk.{number}.fc2.weight", fc2),
        )
        for number, (fc1, fc2) in predictors.items()
    }
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
    return [
        _report(meter.layers[number], fc1.shape[0])
        for number, (fc1, _) in model.weights.mlp.items()
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

        The model runs on the CPU with `exact` sparsity.
        """
        count = max(1, _ERROR_TOKENS // windows.shape[1])
        self._windows = windows[:: -(-len(windows) // count)]
        self._model, self._number = model, number
        self._truth: tuple[GroundTruth, FloatArray] | None = None

    def __call__(self, fc1: HalfArray, fc2: HalfArray) -> float:
        """Relative error of the output with f16[rank, width] and f16[num_neurons, rank]."""
        if self._truth is None:
            self._truth = self._run()
        truth, seen = self._truth
        first, second = (matrix.astype(np.float32).T for matrix in (fc1, fc2))
        passes = []
        for start in range(0, len(seen), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            hidden = np.maximum(seen[chunk] @ first, 0)
            passes.append(_passes(hidden, second, truth.routing.rows(chunk)))
        return truth.ffn_error(np.concatenate(passes)).value

    def _run(self) -> tuple[GroundTruth, FloatArray]:
        inputs: list[tuple[FloatArray, ...]] = []
        model = self._model

        def see(layer: FiringLayer) -> None:
            if layer.number == self._number:
                seen = layer.seen(model.architecture.predictor_input)
                router = () if layer.router is None else (layer.router,)
                inputs.append(tuple(part.copy() for part in (layer.x, seen, *router)))

        for batch in batches(self._windows, 1):
            watch_firing(model, batch, see, num_layers=self._number + 1)
        x, seen, *router = (np.concatenate(part) for part in zip(*inputs, strict=True))
        ffn = model.weights.layers[self._number].ffn
        return GroundTruth(model.ops, ffn, x, None, *router), seen


def _passes(hidden: FloatArray, fc2: FloatArray, routing: Routing) -> Mask:
    """Candidates that pass, bool[num_tokens, num_candidates].

    `hidden` is f32[num_tokens, rank], `fc2` f32[rank, num_neurons].
    """
    size = routing.num_neurons // routing.num_experts
    passes = np.zeros((*routing.experts.shape, size), bool)
    for expert in np.unique(routing.experts):
        tokens, places = np.nonzero(routing.experts == expert)
        own = fc2[:, expert * size : (expert + 1) * size]
        passes[tokens, places] = hidden[tokens] @ own >= THRESHOLD
    return passes.reshape(len(passes), -1)
