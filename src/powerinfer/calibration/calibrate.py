"""Measures a model: which neurons are active on a text, and how good every predictor kind is.

The model runs without loss over windows of the text. Half of the windows give the statistics that
predictors are built from, the other half shows how good they are. A layer is finished when the
pass reaches it, so never more than one layer's predictors are in memory.
"""

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.curves import measure_curve
from powerinfer.calibration.ffn_inputs import FFNInputs
from powerinfer.calibration.ground_truth import GroundTruth, count_active
from powerinfer.calibration.scores import ScoreCache
from powerinfer.calibration.text import CalibrationText
from powerinfer.calibration.thresholds import measure_thresholds
from powerinfer.calibration.window_pass import LayersDone, measure_layers
from powerinfer.errors import NumericsError
from powerinfer.models import Model
from powerinfer.models.sparsity import (
    EXACT,
    InputStatistics,
    check_is_cuttable,
    check_is_sparse,
    layer_source,
    layers_to_count,
    uniform,
    with_predictors,
)
from powerinfer.predictors import (
    KindName,
    LayerChoice,
    PredictorInput,
    build_predictor,
    packaged_kind_names,
    parse_kind,
)
from powerinfer.predictors.calibration import Calibration, Dial, LayerCalibration, six_digits
from powerinfer.predictors.choosing import FFNBytes, choose
from powerinfer.predictors.kind import THRESHOLD
from powerinfer.quant import QuantFormat, get_format
from powerinfer.values import Activation, FloatArray

__all__ = ["calibrate", "kinds_to_measure"]

_CASCADES = ("sign+lowbit:2",)


def kinds_to_measure(model: Model) -> tuple[str, ...]:
    """Kinds of the package worth measuring: a model can run them, in fewer bits than it has anyway.

    Kinds of other packages are measured only if named: installing one changes no calibration.
    """
    if model.config.activation.is_cuttable:
        return (THRESHOLD,)
    return tuple(
        name
        for name in (*packaged_kind_names(), *_CASCADES)
        if all(_is_useful(model, part) for part in parse_kind(name))
    )


def _is_useful(model: Model, part: KindName) -> bool:
    if part.kind.scorer is None:
        return False
    if part.kind.name == "mlp":
        if not model.weights.mlp or not part.variant:
            return bool(model.weights.mlp)
        formats = [get_format(tensor.format) for tensor in next(iter(model.weights.mlp.values()))]
        return _bits(get_format(part.variant)) < max(_bits(known) for known in formats)
    ffn = model.weights.layers[model.config.counted_layers[0]].ffn
    decider = ffn.up.matrix if ffn.gate is None else ffn.gate.matrix
    rows, columns = model.ops.matrix_shape(decider)
    copied = float(part.variant or 0)  # `sign` has one bit, which is never too many
    return copied + 0.5 < 8 * model.ops.matrix_bytes(decider) / (rows * columns)


def _bits(known: QuantFormat) -> float:
    return 8 * known.block_bytes / known.block_size


def calibrate(
    model: Model,
    text: CalibrationText,
    *,
    identity: str,
    dial: Dial,
    kinds: Sequence[str] | None = None,
    progress: LayersDone | None = None,
) -> Calibration:
    """Measure every layer and choose for each what is fastest within the dial.

    The model's own predictors are not used. Without `kinds`, all that make sense are measured; of
    an activation that is never zero, thresholds on it.

    Raises:
        UnsupportedError: the activation is never zero, or a kind does not fit the model.
        NumericsError: the model produced NaN or infinity.
    """
    numbers = layers_to_count(model.config)
    if model.config.activation.is_sparse:
        exact = with_predictors(model, uniform(EXACT, len(numbers)), name=EXACT)
    else:
        exact = model
    chosen_kinds = tuple(kinds_to_measure(model) if kinds is None else kinds)
    _check_fits(model.config.activation, chosen_kinds, dial)
    for kind in chosen_kinds:
        if "+" in kind:
            # Parts that do not go together are scored one by one, and would show at the end.
            build_predictor(exact.ops, layer_source(exact, numbers[0], None), LayerChoice(kind))
    is_first, is_test = np.zeros((2, *text.windows.shape), bool)
    is_first[:, 0] = is_test[1::2] = True
    first, test = is_first.reshape(-1), is_test.reshape(-1)
    # Models send outliers through the first token of a window; what is typical leaves it out.
    fit = ~test & ~first
    layers: list[LayerCalibration] = []

    def measure(number: int, inputs: FFNInputs) -> None:
        if number in numbers:
            parts = inputs.rows(fit), inputs.rows(test)
            layers.append(_measure(exact, number, *parts, first[test], dial, chosen_kinds))

    measure_layers(exact, text.windows, measure, progress)
    router = exact.weights.layers[numbers[0]].ffn.router
    return Calibration(
        model_identity=identity,
        activation=str(model.config.activation),
        text_name=text.name,
        num_tokens=int(fit.sum() + test.sum()),
        dial=dial,
        layers=tuple(layers),
        num_experts=1 if router is None else router.num_experts,
        num_experts_used=1 if router is None else router.num_used,
    )


def _check_fits(activation: Activation, kinds: Sequence[str], dial: Dial) -> None:
    """Refuse thresholds for activations that are zero anyway, and predictors for the others."""
    if dial.zeros is not None or THRESHOLD in kinds:
        check_is_cuttable(activation, "kinds" if dial.zeros is None else "zeros")
    if tuple(kinds) != (THRESHOLD,):
        check_is_sparse(activation, ", ".join(kinds))


def _measure(
    model: Model,
    number: int,
    fit: FFNInputs,
    test: FFNInputs,
    firsts: npt.NDArray[np.bool_],
    dial: Dial,
    kinds: tuple[str, ...],
) -> LayerCalibration:
    """Measure a layer: statistics of the tokens `fit`, curves on the tokens `test`."""
    ops = model.ops
    statistics = _statistics(fit.x)
    source = layer_source(model, number, statistics)
    truth = GroundTruth(ops, source.ffn, test.x, firsts, test.router)
    if not truth.is_finite:
        raise NumericsError(
            f"calibration: the FFN in layer {number} makes NaN or infinity: its weights are "
            "damaged, or the activation is not the model's",
            remedy="name the right one with {activation}",
        )
    inputs = {source.mlp_input: test.raw, PredictorInput.FFN_INPUT: truth.x}
    scores = ScoreCache(ops, source, inputs, kinds, truth.routing)
    num_bytes = FFNBytes.of(ops, source.ffn)
    curves = {
        kind: measure_thresholds(ops, source.ffn, truth, dial)
        if kind == THRESHOLD
        else measure_curve(scores.of(kind), truth, num_bytes, dial)
        for kind in kinds
    }
    return LayerCalibration(
        num_active=count_active(ops, source.ffn, fit.x, fit.router) + truth.num_active,
        mean=statistics.mean,
        variance=statistics.variance,
        curves=MappingProxyType(curves),
        choice=choose(curves, dial),
    )


def _statistics(x: FloatArray) -> InputStatistics:
    """Mean and variance of f32[num_tokens, hidden_size], rounded as they are stored."""
    mean, variance = x.mean(axis=0, dtype=np.float64), x.var(axis=0, dtype=np.float64)
    return InputStatistics(
        np.array([six_digits(value) for value in mean], np.float32),
        np.array([six_digits(value) for value in variance], np.float32),
    )
