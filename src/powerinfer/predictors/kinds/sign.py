"""Signs of the input against signs of the gate's rows: XOR and popcount, 1/16 of F16's bytes.

Like SparseInfer (arXiv 2411.12692), but the mean of the input is subtracted first, and the caution
per neuron is in deviations of the estimate, as in `lowbit`. Binarising both sides is coarse: useful
where neurons are easily separated, or as the first stage of a cascade.
"""

from powerinfer.ops.backend import Backend
from powerinfer.predictors.kind import PredictorKind
from powerinfer.predictors.kinds.lowbit import copy_scorer
from powerinfer.predictors.predictor import LayerSource, Scorer

__all__ = ["KIND"]

_CAUTION = -2.0


def _scorer(ops: Backend, source: LayerSource, _variant: str) -> Scorer:
    return copy_scorer(ops, source, "sign")


KIND = PredictorKind(
    name="sign",
    summary="one bit per weight of the gate against the signs of the input",
    scorer=_scorer,
    default_threshold=lambda _source: _CAUTION,
    cascade_bits={"": 1},
)
