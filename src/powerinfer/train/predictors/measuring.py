"""How good trained predictors are: the model runs held-out text with all of them attached."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from powerinfer.calibration.recall import LayerRecall, RecallMeter
from powerinfer.gguf import Tensor
from powerinfer.models import Model, uniform, with_predictors
from powerinfer.models.blocks import Observer, Stage, StepControl
from powerinfer.train.predictors.folder import LayerReport
from powerinfer.train.predictors.layer_data import HalfArray
from powerinfer.values import FloatArray, IntArray

__all__ = ["attach_predictors", "measure_predictors"]

_BATCH_TOKENS = 2048
_KIND = "mlp"


def attach_predictors(
    model: Model, predictors: Sequence[tuple[HalfArray, HalfArray]], threshold: float
) -> Model:
    """The same model with predictors as PowerInfer's files carry them.

    Args:
        model: of a sparse activation and without experts.
        predictors: f16[rank, hidden_size] and f16[num_neurons, rank] of each layer.
        threshold: of their scores.
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
    """Run text through a model with predictors, and count what they find.

    Args:
        model: with predictors in all layers.
        windows: i32[num_windows, window] of held-out text.
        progress: called with (windows done, windows in all).

    Returns:
        Figures of each layer.
    """
    meter = RecallMeter(model)
    size = max(1, _BATCH_TOKENS // windows.shape[1])
    for start in range(0, len(windows), size):
        batch_windows = windows[start : start + size]
        cache = model.new_cache(len(batch_windows) * (windows.shape[1] + 64))
        parts = [(number, ids, 0) for number, ids in enumerate(batch_windows)]
        batch = cache.batch(parts, [True] * len(parts))
        observe = _ending(meter.of_step(batch, None), model.config.num_layers)
        model.forward(batch, cache, observe=observe)
        progress(min(start + size, len(windows)), len(windows))
    weights = model.weights.mlp
    return [
        _report(sums, fc1.shape[0]) for sums, (fc1, _) in zip(meter.layers, weights, strict=True)
    ]


def _ending(observe: Observer, num_layers: int) -> Observer:
    """An observer of a step that ends with its last layer: the logits are not needed."""

    def see(stage: Stage, number: int, x: FloatArray) -> StepControl | None:
        observe(stage, number, x)
        is_end = stage is Stage.FFN and number + 1 == num_layers
        return StepControl.STOP if is_end else None

    return see


def _report(sums: LayerRecall, rank: int) -> LayerReport:
    """Figures of a layer; shares of nothing are 1, because nothing was missed or let pass."""
    return LayerReport(
        active=sums.firing_share or 0.0,
        rank=rank,
        recall=1.0 if sums.recall is None else sums.recall,
        precision=1.0 if sums.precision is None else sums.precision,
        density=sums.predicted_share or 0.0,
        ffn_error=sums.ffn_error or 0.0,
    )
