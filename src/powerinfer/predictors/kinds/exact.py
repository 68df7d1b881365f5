"""No prediction: the gate (ungated: up) is computed for all neurons and decides which fire.

Lossless. Reads (3 - 2s)/3 of the bytes of a gated FFN, (2 - s)/2 of an ungated one, s being the
share of inactive neurons.
"""

from powerinfer.predictors.kind import PredictorKind

__all__ = ["KIND"]

KIND = PredictorKind(
    name="exact", summary="compute every gate, skip the rows of neurons that do not fire; no loss"
)
