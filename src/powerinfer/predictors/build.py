"""Construction of the predictor of a layer from its choice, a kind and its thresholds."""

from dataclasses import dataclass, replace

import numpy as np

from powerinfer.errors import UnsupportedError
from powerinfer.ops.backend import Backend, SomeFFN
from powerinfer.predictors.answers import neurons_of, scorer_of
from powerinfer.predictors.names import parse_kind
from powerinfer.predictors.predictor import (
    LayerPredictor,
    LayerSource,
    Scorer,
    fused_predictor,
)
from powerinfer.values import FloatArray

__all__ = ["LayerChoice", "PredictedFFN", "build_predictor"]


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Predictor choice of one layer.

    Attributes:
        kind: `exact`, `lowbit:2`, `sign+lowbit:2`, ...
        thresholds: one per part of the cascade; empty for the defaults.
    """

    kind: str
    thresholds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class PredictedFFN:
    """An FFN with its predictor, which is None for `exact`."""

    ffn: SomeFFN
    predictor: LayerPredictor | None


def build_predictor(ops: Backend, source: LayerSource, choice: LayerChoice) -> PredictedFFN:
    """Prepare the predictor of one layer, with the backend that prepared `source.ffn`.

    Raises:
        UnsupportedError: the kind is unknown, or the model lacks the data for it.
        ShapeError: the file's predictor matrices do not fit the model.
    """
    parts = parse_kind(choice.kind)
    first = parts[0].kind
    if first.scorer is None and first.active_ids is None:
        return PredictedFFN(_prepare(ops, source.ffn), None)
    name = "+".join(str(part) for part in parts)
    if first.active_ids is not None:
        active_ids = neurons_of(ops, source, parts[0])
        ffn = _prepare(ops, source.ffn)
        return PredictedFFN(ffn, LayerPredictor(name, first.input, active_ids))
    thresholds = choice.thresholds or tuple(p.kind.default_threshold(source) for p in parts)
    if len(thresholds) != len(parts):
        raise UnsupportedError(
            f"sparsity {choice.kind!r} takes {len(parts)} thresholds, got {len(thresholds)}"
        )
    scorers = tuple(scorer_of(ops, source, part) for part in parts)
    _check_parts(name, scorers)
    predictor = fused_predictor(ops, scorers, thresholds)
    ffn = ops.ffn_weights(replace(source.ffn, is_exact_sparse=True, predictor=predictor))
    return PredictedFFN(ffn, LayerPredictor(name, scorers[0].input))


def _prepare(ops: Backend, ffn: SomeFFN) -> SomeFFN:
    return ops.ffn_weights(replace(ffn, is_exact_sparse=True, predictor=None))


def _check_parts(name: str, scorers: tuple[Scorer, ...]) -> None:
    """Check that the parts of a cascade can be stages of one predictor."""
    if len({scorer.input for scorer in scorers}) > 1:
        raise UnsupportedError(f"sparsity {name!r}: the parts of a cascade must share one input")
    if len(scorers) > 1 and any(scorer.fc1 is not None for scorer in scorers):
        raise UnsupportedError(
            f"sparsity {name!r}: a kind with a hidden layer cannot be part of a cascade"
        )
    first = scorers[0].center
    for scorer in scorers[1:]:
        if not np.array_equal(_or_zero(scorer.center), _or_zero(first)):
            raise UnsupportedError(
                f"sparsity {name!r}: the parts of a cascade must subtract the same center"
            )


def _or_zero(center: FloatArray | None) -> FloatArray:
    return np.zeros(1, np.float32) if center is None else center
