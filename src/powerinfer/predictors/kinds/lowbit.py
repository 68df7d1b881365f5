"""A copy of the gate in 2, 3 or 4 bits per weight predicts the gate itself; needs no training.

Ungated FFNs copy up; dReLU copies both, and up's copy is read only for neurons whose gate passed.
The input is centred on its calibrated mean m, whose product with each row is known exactly:
gate . x ~= copy . (x - m) + gate . m. The remaining error is the rounding of the copy, whose
standard deviation per neuron follows from the input's variance. Scores are in units of it, so one
threshold per layer (-3: three deviations of caution) fits all its neurons.
"""

import numpy as np

from powerinfer.errors import NumericsError
from powerinfer.ops.backend import Backend, SomeLinear
from powerinfer.predictors.kind import PredictorKind
from powerinfer.predictors.predictor import LayerSource, PredictorInput, ScorePart, Scorer

__all__ = ["KIND", "copy_scorer"]

_FORMATS = {"2": "lowbit2", "3": "lowbit3", "4": "q4_0"}
_CAUTION = -3.0


def copy_scorer(ops: Backend, source: LayerSource, format_name: str) -> Scorer:
    """Build a scorer from copies of the deciding matrices in another format."""
    parts = tuple(_part(ops, linear, source, format_name) for linear in source.deciding)
    center = source.mean if source.mean.any() else None
    return Scorer(PredictorInput.FFN_INPUT, parts, center=center)


def _part(ops: Backend, linear: SomeLinear, source: LayerSource, format_name: str) -> ScorePart:
    try:
        copy = ops.recode(linear.matrix, format_name)
    except NumericsError as error:
        name = "ffn_gate" if linear is source.ffn.gate else "ffn_up"
        of_experts = "" if source.ffn.router is None else "_exps"
        raise NumericsError(
            f"tensor blk.{source.number}.{name}{of_experts}.weight: {error}"
        ) from None
    offset, noise = ops.copy_statistics(linear.matrix, copy, source.mean, source.variance)
    if linear.bias is not None:
        offset = offset + ops.vector_values(linear.bias)
    return ScorePart(copy, offset - np.float32(source.ffn.activation.threshold), noise)


def _scorer(ops: Backend, source: LayerSource, variant: str) -> Scorer:
    return copy_scorer(ops, source, _FORMATS[variant])


KIND = PredictorKind(
    name="lowbit",
    summary="a 2, 3 or 4-bit copy of the gate (of up without one, of both for dReLU)",
    variants=tuple(_FORMATS),
    scorer=_scorer,
    default_threshold=lambda _source: _CAUTION,
    cascade_bits={variant: int(variant) for variant in _FORMATS},
)
