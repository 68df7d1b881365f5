"""Scores of a predictor kind for many tokens at once, by matrix products."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerinfer.calibration.ground_truth import token_chunks
from powerinfer.calibration.routing import Routing
from powerinfer.errors import UnsupportedError
from powerinfer.ops.backend import Backend, Matrix
from powerinfer.ops.protocol import Linear
from powerinfer.predictors import KindName, LayerSource, PredictorInput, Scorer, parse_kind
from powerinfer.predictors.answers import scorer_of
from powerinfer.predictors.choosing import PredictorBytes
from powerinfer.values import FloatArray

__all__ = ["PartScores", "ScoreCache"]


@dataclass(frozen=True, slots=True)
class PartScores:
    """One part of a kind; `sign+lowbit:2` has two.

    Attributes:
        stages: f32[num_tokens, num_candidates] each; a neuron passes if all reach the threshold.
            Two for copies of both gate and up.
    """

    stages: tuple[FloatArray, ...]
    num_bytes: PredictorBytes

    @classmethod
    def measure(cls, ops: Backend, scorer: Scorer, x: FloatArray, routing: Routing) -> "PartScores":
        """Score f32[num_tokens, hidden_size] for the neurons that may run."""
        chunks = [
            _scores(ops, scorer, x[chunk], routing.rows(chunk)) for chunk in token_chunks(len(x))
        ]
        stages = tuple(np.concatenate(stage) for stage in zip(*chunks, strict=True))
        used_share = routing.num_candidates / routing.num_neurons
        return cls(stages, PredictorBytes.of(ops, (scorer,), used_share))

    @property
    def lowest(self) -> FloatArray:
        """The scores to compare with the threshold: the smallest over the stages."""
        if len(self.stages) == 1:
            return self.stages[0]
        lowest: FloatArray = np.minimum.reduce(self.stages)
        return lowest


class ScoreCache:
    """Scores of one layer's kinds; parts that cascades share are computed once."""

    def __init__(
        self,
        ops: Backend,
        source: LayerSource,
        inputs: dict[PredictorInput, FloatArray],
        kinds: Sequence[str],
        routing: Routing,
    ) -> None:
        self._ops = ops
        self._routing = routing
        self._source = source
        self._inputs = inputs
        cascades = [kind for kind in kinds if "+" in kind]
        self._shared = {str(part) for kind in cascades for part in parse_kind(kind)}
        self._known: dict[str, PartScores] = {}

    def of(self, kind: str) -> tuple[PartScores, ...]:
        """Score each part of a kind, in the order in which they are asked."""
        return tuple(self._part(part) for part in parse_kind(kind))

    def _part(self, part: KindName) -> PartScores:
        name = str(part)
        if name in self._known:
            return self._known[name]
        if part.kind.scorer is None:
            raise UnsupportedError(f"sparsity '{name}' has no threshold to calibrate")
        scorer = scorer_of(self._ops, self._source, part)
        scores = PartScores.measure(self._ops, scorer, self._inputs[scorer.input], self._routing)
        if name in self._shared:
            self._known[name] = scores
        return scores


def _scores(
    ops: Backend, scorer: Scorer, x: FloatArray, routing: Routing
) -> tuple[FloatArray, ...]:
    """f32[num_tokens, num_candidates] of each stage."""
    inputs = x if scorer.center is None else x - scorer.center
    if scorer.fc1 is not None:
        inputs = np.maximum(_product(ops, inputs, scorer.fc1), 0)
    stages = []
    for part in scorer.parts:
        if scorer.num_experts > 1:
            scores = _scores_by_expert(ops, inputs, part.matrix, routing)
        else:
            scores = routing.take(_product(ops, inputs, part.matrix))
        if part.offset is not None:
            scores += routing.of_neurons(part.offset)
        if part.noise is not None:
            scores /= routing.of_neurons(part.noise)
        stages.append(scores)
    return tuple(stages)


def _scores_by_expert(
    ops: Backend, hidden: FloatArray, matrix: Matrix, routing: Routing
) -> FloatArray:
    """Each expert's rows of a matrix times its own part of f32[num_tokens, num_experts * rank]."""
    by_expert = hidden.reshape(len(hidden), routing.num_experts, -1)
    scores = []
    for place in range(routing.experts.shape[1]):
        alone = routing.place(place)
        own = by_expert[np.arange(len(hidden)), alone.experts[:, 0]]
        scores.append(alone.take(_product(ops, own, matrix)))
    return np.concatenate(scores, axis=1)


def _product(ops: Backend, x: FloatArray, matrix: Matrix) -> FloatArray:
    """Multiply with a matrix that may have more columns, which meet zeros.

    Without prompt flags, by decoding's arithmetic: it decides about neurons near the threshold, and
    some of those weigh much.
    """
    _, columns = ops.matrix_shape(matrix)
    padded = np.zeros((len(x), columns), np.float32)
    padded[:, : x.shape[1]] = x
    return ops.to_host(ops.linear(padded, (Linear(matrix),))[0])
