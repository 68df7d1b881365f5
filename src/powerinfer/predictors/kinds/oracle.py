"""The neurons that really fire, told by the weights themselves: an upper bound for benchmarks.

It finds them by computing gate (and up) in full, outside the FFN call, so only its quality and the
bytes of the FFN call mean something, not its time.
"""

from collections.abc import Callable

import numpy as np

from powerinfer.ops.protocol import ActiveIds, Ops
from powerinfer.predictors.kind import PredictorKind
from powerinfer.predictors.predictor import LayerSource
from powerinfer.values import ActivationKind, FloatArray

__all__ = ["KIND"]


def _active_ids(ops: Ops, source: LayerSource, _variant: str) -> Callable[[FloatArray], ActiveIds]:
    ffn = source.ffn
    deciding = [ffn.up if ffn.gate is None else ffn.gate]
    if ffn.gate is not None and ffn.activation.kind is ActivationKind.DRELU:
        deciding.append(ffn.up)

    def active_ids(x: FloatArray) -> ActiveIds:
        values = ops.linear(x, deciding)
        fires = np.ones(values[0].shape, bool)
        for value in values:
            # Written so that NaN fires.
            if ffn.activation.kind is ActivationKind.FATRELU:
                fires &= ~(value < ffn.activation.threshold)
            else:
                fires &= ~(value <= 0)
        return ActiveIds.of_mask(fires)

    return active_ids


KIND = PredictorKind(
    name="oracle",
    summary="the neurons that really fire, for benchmarks: finding them costs a dense pass",
    active_ids=_active_ids,
)
