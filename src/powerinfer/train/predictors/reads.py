"""What predictors inside experts read for each token, and what that saves against `exact`."""

from dataclasses import dataclass

from powerinfer.models import Model
from powerinfer.quant import QuantFormat, get_format
from powerinfer.train.predictors.goal import RANK_STEP, Goal
from powerinfer.train.predictors.sizes import PredictorSizes

__all__ = ["LayerReads"]

# As training stores them, and the smallest form that they can run in.
_STORED, _SMALLEST = "f16", "q4_0"


@dataclass(frozen=True, slots=True)
class LayerReads:
    """Bytes that a layer reads for each token.

    `exact` reads the deciding matrix of the chosen experts whole; with a predictor only rows of
    neurons that pass are read. Other matrices are read alike.

    Attributes:
        row_bytes: of a row of the deciding matrix: gate, or up where there is none.
    """

    sizes: PredictorSizes
    row_bytes: float

    @classmethod
    def of(cls, model: Model, number: int) -> "LayerReads":
        """Bytes of a layer of a model."""
        ffn, ops = model.weights.layers[number].ffn, model.ops
        matrix = ffn.up.matrix if ffn.gate is None else ffn.gate.matrix
        row_bytes = ops.matrix_bytes(matrix) / ops.matrix_shape(matrix)[0]
        return cls(PredictorSizes.of(model.config, model.architecture), row_bytes)

    def saved(self, density: float) -> float:
        """Bytes that are not read if this share of the neurons passes."""
        return (1 - min(1.0, density)) * self.sizes.num_candidates * self.row_bytes

    def read(self, rank: int) -> float:
        """Bytes of the predictor as stored: fc1, and the chosen experts' part of fc2."""
        return rank * self.sizes.rank_reads * _weight_bytes(get_format(_STORED))

    def largest_rank(self, active: float, goal: Goal) -> int:
        """The largest rank worth training, at least one step.

        Beyond it a predictor that lets as many neurons pass as the goal allows reads more than it
        saves, even as `mlp:q4_0`. `active` is the share of the neurons that fire.
        """
        smallest = self.sizes.rank_reads * _weight_bytes(get_format(_SMALLEST))
        steps = self.saved(goal.max_density * active) / smallest / RANK_STEP
        return RANK_STEP * max(1, int(steps))


def _weight_bytes(known: QuantFormat) -> float:
    return known.block_bytes / known.block_size
