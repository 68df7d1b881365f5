"""The neuron predictor of a layer: its input, and the path of its result to the FFN.

Paper: "activation predictor" (arXiv 2312.12456, section 5.1). A kind is one file in ``kinds/``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.backend import (
    Activations,
    Backend,
    Matrix,
    SomeFFN,
    SomeLinear,
    SomePredictor,
    SomeStage,
)
from powerinfer.ops.protocol import ActiveIds, ArrayT, NeuronPredictor, ScoreStage
from powerinfer.values import ActivationKind, BoolArray, FloatArray

__all__ = [
    "AsksNeurons",
    "LayerPredictor",
    "LayerSource",
    "PredictorInput",
    "ScorePart",
    "Scorer",
    "fused_predictor",
]


AsksNeurons: TypeAlias = Callable[[FloatArray, BoolArray | None], ActiveIds]
"""Function from f32[num_tokens, hidden_size] in host memory and marks to the neurons per token.

Marks say which tokens are prompt, see `powerinfer.ops.protocol.Ops`.
"""


class PredictorInput(StrEnum):
    """Input of a predictor, f32[num_tokens, hidden_size].

    RESIDUAL: the stream after attention, not normalised (PowerInfer's llama, bamboo, opt).
    LAYER_INPUT: the stream before the layer, not normalised (PowerInfer's falcon).
    FFN_INPUT: the input of the FFN.
    """

    RESIDUAL = "residual"
    LAYER_INPUT = "layer_input"
    FFN_INPUT = "ffn_input"


# Read in every layer of a decode step, where an attribute look-up in the enum is measurable.
_FFN_INPUT = PredictorInput.FFN_INPUT


@dataclass(frozen=True, slots=True)
class LayerSource:
    """Data from which a kind can build a layer's predictor.

    Attributes:
        ffn: its FFN, prepared by the backend.
        mlp: the file's predictor matrices (fc1, fc2), or None; with experts fc2 is [num_experts,
            intermediate_size, rank], and fc1 one matrix for all or [num_experts, rank, columns].
        mlp_input: their input, which depends on the architecture.
        mlp_threshold: score at or above which they predict a neuron.
        mean: f32[hidden_size], mean of the FFN's input; zeros if it was not measured.
        variance: f32[hidden_size], its variance; the norm weight squared if it was not measured.
        mlp_problem: why the file's predictor matrices cannot be used, or None.
    """

    number: int
    ffn: SomeFFN
    mlp: tuple[Tensor, Tensor] | None
    mlp_input: PredictorInput
    mlp_threshold: float
    mean: FloatArray
    variance: FloatArray
    mlp_problem: str | None = None

    @property
    def deciding(self) -> tuple[SomeLinear, ...]:
        """Matrices whose products decide whether a neuron fires: gate, else up; for dReLU both."""
        gate, up = self.ffn.gate, self.ffn.up
        if gate is None:
            return (up,)
        return (gate, up) if self.ffn.activation.kind is ActivationKind.DRELU else (gate,)


@dataclass(frozen=True, slots=True)
class ScorePart:
    """score = (matrix @ input + offset) / noise, for every neuron.

    Attributes:
        matrix: [num_neurons, columns]; experts are concatenated.
        offset: f32[num_neurons], or None for zeros.
        noise: f32[num_neurons] > 0, or None for ones.
    """

    matrix: Matrix
    offset: FloatArray | None = None
    noise: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores compared with a threshold: a neuron is active iff every part reaches it.

    Attributes:
        parts: evaluated in this order, the later ones only for neurons that passed.
        fc1: hidden layer before the parts, [rank, hidden_size], or None.
        center: f32[hidden_size] subtracted from the input first, or None.
        num_experts: number of hidden layers concatenated in `fc1`, [num_experts * rank,
            hidden_size], each for the neurons of one expert; 1 if all neurons share one.
    """

    input: PredictorInput
    parts: tuple[ScorePart, ...]
    fc1: Matrix | None = None
    center: FloatArray | None = None
    num_experts: int = 1


@dataclass(frozen=True, slots=True)
class LayerPredictor:
    """The predictor of one layer.

    Attributes:
        kind: name, for example ``lowbit:2``.
        active_ids: lists the neurons of each token; None where the FFN call predicts by itself
            (`FFN.predictor`).
    """

    kind: str
    input: PredictorInput
    active_ids: AsksNeurons | None = None

    def select_input(self, x: ArrayT, raw: ArrayT) -> ArrayT:
        """Select its input.

        Args:
            x: f32[num_tokens, hidden_size], input of the FFN.
            raw: f32[num_tokens, hidden_size], input of the architecture's own predictors.
        """
        return x if self.input is _FFN_INPUT else raw

    def select(
        self,
        ops: Backend,
        ffn: SomeFFN,
        x: Activations,
        raw: Activations,
        is_prompt: BoolArray | None = None,
    ) -> ActiveIds:
        """Predict the neurons of each token without computing the FFN.

        Includes neurons of all experts; the FFN call ignores experts not selected for a token.

        Args:
            is_prompt: bool[num_tokens], see `powerinfer.ops.protocol.Ops`.
        """
        predictor_input = self.select_input(x, raw)
        if self.active_ids is not None:
            return self.active_ids(ops.to_host(predictor_input), is_prompt)
        if ffn.predictor is None:
            raise UnsupportedError(f"predictor {self.kind} was not prepared with its FFN")
        return ops.predict(ops.to_host(predictor_input), ffn.predictor, is_prompt)


def fused_predictor(
    ops: Backend, scorers: tuple[Scorer, ...], thresholds: tuple[float, ...]
) -> SomePredictor:
    """Fuse a cascade of scorers that share their input into one predictor for the FFN call.

    Args:
        scorers: the cascade; a scorer with a hidden layer must be the only one.
    """
    first = scorers[0]
    stages = [
        _stage(ops, part, threshold)
        for scorer, threshold in zip(scorers, thresholds, strict=True)
        for part in scorer.parts
    ]
    center = None if first.center is None else ops.constant(first.center)
    return ops.neuron_predictor(
        NeuronPredictor(
            first.fc1, center, tuple(stages), num_experts=first.num_experts, native=None
        )
    )


def _stage(ops: Backend, part: ScorePart, threshold: float) -> SomeStage:
    """Fold offset and noise into one bias per neuron, so that a test is one addition."""
    if part.noise is None:
        bias = None if part.offset is None else ops.constant(part.offset)
        return ScoreStage(part.matrix, bias, threshold)
    if np.isneginf(threshold):
        return ScoreStage(part.matrix, None, threshold)
    offset = np.float32(0) if part.offset is None else part.offset
    shift = (offset - np.float32(threshold) * part.noise).astype(np.float32)
    return ScoreStage(part.matrix, ops.constant(shift), 0.0)
