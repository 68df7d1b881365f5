"""Predictors of the active neurons of an FFN.

A new kind is one file in ``kinds/``, or comes from outside the package, see `outside`.
"""

from powerinfer.ops.protocol import ActiveIds
from powerinfer.predictors.build import LayerChoice, build_predictor
from powerinfer.predictors.kind import PredictorKind
from powerinfer.predictors.names import (
    KindName,
    get_kind,
    kind_names,
    packaged_kind_names,
    parse_kind,
)
from powerinfer.predictors.outside import register
from powerinfer.predictors.predictor import (
    LayerPredictor,
    LayerSource,
    PredictorInput,
    ScorePart,
    Scorer,
)

__all__ = [
    "ActiveIds",
    "KindName",
    "LayerChoice",
    "LayerPredictor",
    "LayerSource",
    "PredictorInput",
    "PredictorKind",
    "ScorePart",
    "Scorer",
    "build_predictor",
    "get_kind",
    "kind_names",
    "packaged_kind_names",
    "parse_kind",
    "register",
]
