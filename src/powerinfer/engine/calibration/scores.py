"""Scores of a predictor kind for many tokens at once, by matrix products."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from powerinfer.errors import UnsupportedError
from powerinfer.ops.protocol import Linear
from powerinfer.ops.some_backend import Matrix, SomeOps
from powerinfer.predictors import KindName, LayerSource, PredictorInput, Scorer, parse_kind
from powerinfer.predictors.answers import scorer_of
from powerinfer.predictors.choosing import PredictorBytes
from powerinfer.values import FloatArray

__all__ = ["PartScores", "ScoreCache"]


@dataclass(frozen=True, slots=True)
class PartScores:
    """One part of a kind; of `sign+lowbit:2` there are two.

    Attributes:
        stages: f32[num_tokens, intermediate_size] each; a neuron passes where all reach the
            threshold. Two for copies of both gate and up.
        num_bytes: what the part reads.
    """

    stages: tuple[FloatArray, ...]
    num_bytes: PredictorBytes

    @classmethod
    def measure(cls, ops: SomeOps, scorer: Scorer, x: FloatArray) -> "PartScores":
        """Score f32[num_tokens, hidden_size]."""
        inputs = x if scorer.center is None else x - scorer.center
        if scorer.fc1 is not None:
            inputs = np.maximum(_product(ops, inputs, scorer.fc1), 0)
        stages = []
        for part in scorer.parts:
            scores = _product(ops, inputs, part.matrix)
            if part.offset is not None:
                scores += part.offset
            if part.noise is not None:
                scores /= part.noise
            stages.append(scores)
        return cls(tuple(stages), PredictorBytes.of(ops, (scorer,)))

    @property
    def lowest(self) -> FloatArray:
        """What is compared with the threshold: the smallest over the stages."""
        if len(self.stages) == 1:
            return self.stages[0]
        lowest: FloatArray = np.minimum.reduce(self.stages)
        return lowest


class ScoreCache:
    """Scores of one layer's kinds; parts that cascades share are computed once."""

    def __init__(
        self,
        ops: SomeOps,
        source: LayerSource,
        inputs: dict[PredictorInput, FloatArray],
        kinds: Sequence[str],
    ) -> None:
        """Start empty.

        Args:
            ops: the backend.
            source: the layer, with statistics of its input.
            inputs: f32[num_tokens, hidden_size] of what predictors look at.
            kinds: that will be asked for.
        """
        self._ops = ops
        self._source = source
        self._inputs = inputs
        cascades = [kind for kind in kinds if "+" in kind]
        self._shared = {str(part) for kind in cascades for part in parse_kind(kind)}
        self._known: dict[str, PartScores] = {}

    def of(self, kind: str) -> tuple[PartScores, ...]:
        """Scores of each part of a kind, in the order in which they are asked.

        Raises:
            UnsupportedError: the kind has no scores, or this file cannot serve it.
        """
        return tuple(self._part(part) for part in parse_kind(kind))

    def _part(self, part: KindName) -> PartScores:
        name = str(part)
        if name in self._known:
            return self._known[name]
        if part.kind.scorer is None:
            raise UnsupportedError(f"sparsity '{name}' has no threshold to calibrate")
        scorer = scorer_of(self._ops, self._source, part)
        scores = PartScores.measure(self._ops, scorer, self._inputs[scorer.input])
        if name in self._shared:
            self._known[name] = scores
        return scores


def _product(ops: SomeOps, x: FloatArray, matrix: Matrix) -> FloatArray:
    """Product with a matrix that may have more columns, which meet zeros.

    Without marks, by decoding's arithmetic: it decides about neurons near the threshold, and some
    of those weigh much.
    """
    _, columns = ops.matrix_shape(matrix)
    padded = np.zeros((len(x), columns), np.float32)
    padded[:, : x.shape[1]] = x
    return ops.to_host(ops.linear(padded, (Linear(matrix),))[0])
