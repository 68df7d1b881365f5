"""The neurons that really fire, computed from the weights: an upper bound for benchmarks.

It computes gate (and up) in full, outside the FFN call, so its quality and the bytes of the FFN
call are meaningful, but its time is not.
"""

from functools import reduce

import numpy as np

from powerinfer.ops.backend import Backend
from powerinfer.ops.protocol import ActiveIds
from powerinfer.ops.reference.ffn import fires
from powerinfer.predictors.kind import PredictorKind
from powerinfer.predictors.predictor import AsksNeurons, LayerSource
from powerinfer.values import BoolArray, FloatArray

__all__ = ["KIND"]


def _active_ids(ops: Backend, source: LayerSource, _variant: str) -> AsksNeurons:
    activation, deciding = source.ffn.activation, source.deciding

    def active_ids(x: FloatArray, is_prompt: BoolArray | None) -> ActiveIds:
        products = ops.linear(x, deciding, is_prompt)
        masks = (fires(activation, ops.to_host(scores)) for scores in products)
        return ActiveIds.of_mask(reduce(np.logical_and, masks))

    return active_ids


KIND = PredictorKind(
    name="oracle",
    summary="the neurons that really fire, for benchmarks: finding them costs a dense pass",
    active_ids=_active_ids,
)
