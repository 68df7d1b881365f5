"""Measuring a model: which neurons are active on a text, and what every predictor kind costs.

The model runs without loss over windows of the text. Half of the windows give the statistics that
predictors are built from, the other half tells how good they are. A layer is finished when the
pass reaches it, so never more than one layer's predictors are in memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from powerinfer.engine.kind_curve import measure_curve
from powerinfer.engine.kind_scores import ScoreBook
from powerinfer.engine.layer_truth import LayerTruth, count_active
from powerinfer.errors import NumericsError, PromptError
from powerinfer.models import Model
from powerinfer.models.sparsity import (
    EXACT,
    InputStatistics,
    layer_source,
    uniform,
    with_predictors,
)
from powerinfer.predictors import LayerSource, PredictorInput, kind_names, parse_kind
from powerinfer.predictors.calibration import Calibration, Curve, Dial, LayerCalibration
from powerinfer.predictors.choosing import FFNBytes, choose
from powerinfer.values import FloatArray, IntArray

__all__ = ["CalibrationText", "Progress", "calibrate", "cut_windows", "kinds_to_measure"]

Progress = Callable[[int, int], None]
"""Called with (layers done, layers in all)."""

WINDOW = 256
_SHORTEST_WINDOW = 16
_CASCADES = ("sign+lowbit:2",)


@dataclass(frozen=True, slots=True)
class CalibrationText:
    """A text cut into windows.

    Attributes:
        name: for reports.
        windows: i32[num_windows, window], at least two.
    """

    name: str
    windows: IntArray


class _AllMeasured(Exception):  # noqa: N818  no error: it ends a pass whose rest nobody needs
    pass


def cut_windows(
    name: str,
    token_ids: Sequence[int],
    *,
    num_tokens: int,
    context_length: int,
    bos_id: int | None,
) -> CalibrationText:
    """Cut a text into windows that do not overlap, an even number of them.

    Args:
        name: of the text.
        token_ids: the whole text.
        num_tokens: most tokens to take.
        context_length: most tokens of a window.
        bos_id: put in place of the first token of each window; None for nothing.

    Raises:
        PromptError: the text has too few tokens.
    """
    available = min(len(token_ids), num_tokens)
    window = min(WINDOW, context_length, available // 2)
    if window < _SHORTEST_WINDOW:
        raise PromptError(
            f"calibrating needs at least {2 * _SHORTEST_WINDOW} tokens of text and a context of "
            f"{_SHORTEST_WINDOW}; got {len(token_ids)} tokens of {name}, of which {num_tokens} "
            f"may be used, and a context of {context_length}"
        )
    num_windows = available // window // 2 * 2
    windows = np.array(token_ids[: num_windows * window], np.int32).reshape(num_windows, window)
    if bos_id is not None:
        windows[:, 0] = bos_id
    return CalibrationText(name, windows)


def kinds_to_measure(model: Model) -> tuple[str, ...]:
    """Kinds worth measuring for a model: those that it can run and that predict by scores."""
    found = []
    for name in (*kind_names(), *_CASCADES):
        parts = parse_kind(name)
        has_tensors = bool(model.weights.mlp) or all(part.kind.name != "mlp" for part in parts)
        if has_tensors and all(part.kind.scorer is not None for part in parts):
            found.append(name)
    return tuple(found)


def calibrate(
    model: Model,
    text: CalibrationText,
    *,
    identity: str,
    dial: Dial,
    kinds: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Calibration:
    """Measure every layer and choose for each what is fastest within the dial.

    Args:
        model: with an activation of the ReLU family; its own predictors are not used.
        text: what to run it on.
        identity: of the model's file.
        dial: what may be lost.
        kinds: to measure; None for all that make sense.
        progress: told after each layer.

    Raises:
        UnsupportedError: the activation is never zero, or a kind does not fit the model.
        NumericsError: the model produced NaN or infinity.
    """
    exact = with_predictors(model, uniform(EXACT, model.config.num_layers), name=EXACT)
    chosen_kinds = tuple(kinds_to_measure(model) if kinds is None else kinds)
    meter = _Meter(exact, text.windows.shape, dial, chosen_kinds, progress)
    _run(exact, text.windows, meter)
    return Calibration(
        model_identity=identity,
        activation=str(model.config.activation),
        text_name=text.name,
        num_tokens=meter.num_counted,
        dial=dial,
        layers=tuple(meter.layers),
    )


def _run(model: Model, windows: IntArray, meter: "_Meter") -> None:
    """Run all windows as one batch, up to the last layer's FFN input."""
    cache = model.new_cache(windows.shape[0] * (windows.shape[1] + 64))
    batch = cache.batch([(number, ids, 0) for number, ids in enumerate(windows)])
    try:
        model.forward(batch, cache, observe=meter.observe)
    except _AllMeasured:
        return
    raise NumericsError("the model ended before its last FFN")  # pragma: no cover


class _Meter:
    """Takes the activations of a pass, layer by layer."""

    def __init__(
        self,
        model: Model,
        shape: tuple[int, ...],
        dial: Dial,
        kinds: tuple[str, ...],
        progress: Progress | None,
    ) -> None:
        self._model = model
        self._dial = dial
        self._kinds = kinds
        self._progress = progress
        # The first token of a window is no sample of anything: models send outliers through it.
        is_counted = np.ones(shape, bool)
        is_counted[:, 0] = False
        is_test = np.zeros(shape, bool)
        is_test[1::2] = True
        self._counted = is_counted.reshape(-1)
        self._fit = (is_counted & ~is_test).reshape(-1)
        self._test = (is_counted & is_test).reshape(-1)
        self._x: FloatArray | None = None
        self.layers: list[LayerCalibration] = []

    @property
    def num_counted(self) -> int:
        """Tokens that count."""
        return int(self._counted.sum())

    def observe(self, stage: str, number: int, x: FloatArray) -> None:
        """Observer of the pass; the last layer ends it."""
        if stage == "FFN input":
            self._x = x
        elif stage == "predictor input" and self._x is not None:
            self.layers.append(self._measure(number, self._x, x))
            self._x = None
            num_layers = self._model.config.num_layers
            if self._progress is not None:
                self._progress(number + 1, num_layers)
            if number + 1 == num_layers:
                raise _AllMeasured

    def _measure(self, number: int, x: FloatArray, raw: FloatArray) -> LayerCalibration:
        if not np.isfinite(x).all():
            raise NumericsError(
                f"calibration: the input of the FFN in layer {number} holds NaN or infinity: the "
                "weights are damaged, or the activation is not the model's (--activation)"
            )
        ops = self._model.ops
        statistics = _statistics(x[self._fit])
        source = layer_source(self._model, number, statistics)
        truth = LayerTruth.measure(ops, source.ffn, _rows(x, self._test))
        inputs = {source.mlp_input: _rows(raw, self._test), PredictorInput.FFN_INPUT: truth.x}
        num_active = count_active(ops, source.ffn, _rows(x, self._fit)) + truth.num_active
        curves = self._curves(source, truth, inputs)
        return LayerCalibration(
            num_active=num_active,
            mean=statistics.mean,
            variance=statistics.variance,
            curves=MappingProxyType(curves),
            choice=choose(curves, self._dial),
        )

    def _curves(
        self,
        source: LayerSource,
        truth: LayerTruth,
        inputs: dict[PredictorInput, FloatArray],
    ) -> dict[str, Curve]:
        ops = self._model.ops
        num_bytes = FFNBytes.of(ops, source.ffn)
        book = ScoreBook(ops, source, inputs, self._kinds)
        return {
            kind: measure_curve(book.of(kind), truth, num_bytes, self._dial) for kind in self._kinds
        }


def _rows(x: FloatArray, chosen: npt.NDArray[np.bool_]) -> FloatArray:
    return np.ascontiguousarray(x[chosen])


def _statistics(x: FloatArray) -> InputStatistics:
    """Mean and variance of f32[num_tokens, hidden_size], rounded as they are stored."""
    mean = x.mean(axis=0, dtype=np.float64)
    variance = x.var(axis=0, dtype=np.float64)
    return InputStatistics(_short(mean), _short(variance))


def _short(values: npt.NDArray[np.float64]) -> FloatArray:
    """Six digits, so that what is stored and read again is the same."""
    return np.array([float(f"{value:.6g}") for value in values], np.float32)
