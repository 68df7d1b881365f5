"""Predictors: which neurons of an FFN will fire, before they are computed.

A new kind is one new file in ``kinds/``.
"""

from powerinfer.predictors.build import LayerChoice, PredictedFFN, build_predictor
from powerinfer.predictors.kind import (
    KindName,
    PredictorKind,
    get_kind,
    kind_names,
    parse_kind,
)
from powerinfer.predictors.predictor import (
    LayerPredictor,
    LayerSource,
    PredictorInput,
    ScorePart,
    Scorer,
    fused_predictor,
)

__all__ = [
    "KindName",
    "LayerChoice",
    "LayerPredictor",
    "LayerSource",
    "PredictedFFN",
    "PredictorInput",
    "PredictorKind",
    "ScorePart",
    "Scorer",
    "build_predictor",
    "fused_predictor",
    "get_kind",
    "kind_names",
    "parse_kind",
]
