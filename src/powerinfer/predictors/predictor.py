"""How a model uses a neuron predictor: its input, and how its answer reaches the FFN.

Paper: "activation predictor" (arXiv 2312.12456, section 5.1). A kind is one file in ``kinds/``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from powerinfer.errors import UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.protocol import ActiveIds, ArrayT, NeuronPredictor, ScoreStage
from powerinfer.ops.some_backend import (
    Activations,
    Matrix,
    SomeFFN,
    SomeLinear,
    SomeOps,
    SomePredictor,
    SomeStage,
)
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
"""From f32[num_tokens, hidden_size] in host memory and marks to the neurons of each token.

Marks say which tokens are prompt, see `powerinfer.ops.protocol.Computes`.
"""


class PredictorInput(StrEnum):
    """Which activations a predictor looks at, each f32[num_tokens, hidden_size].

    RESIDUAL: the stream after attention, not normalised (PowerInfer's llama, bamboo, opt).
    LAYER_INPUT: the stream before the layer, not normalised (PowerInfer's falcon).
    FFN_INPUT: what the FFN itself gets.
    """

    RESIDUAL = "residual"
    LAYER_INPUT = "layer_input"
    FFN_INPUT = "ffn_input"


# Asked for in every layer of a decode step, where a look-up in the enum would be felt.
_FFN_INPUT = PredictorInput.FFN_INPUT


@dataclass(frozen=True, slots=True)
class LayerSource:
    """What a kind can build a layer's predictor from.

    Attributes:
        number: of the layer.
        ffn: its block, prepared by the backend.
        mlp: the file's predictor matrices (fc1, fc2), or None; of experts [num_experts, rank,
            hidden_size] and [num_experts, intermediate_size, rank].
        mlp_input: what those look at; the architecture says.
        mlp_threshold: score at or above which they call a neuron active.
        mean: f32[hidden_size], mean of the FFN's input; zeros if it was not measured.
        variance: f32[hidden_size], its variance; the norm weight squared if it was not measured.
        mlp_problem: why the file has predictor matrices that cannot be used, or None.
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
        """What must be positive for a neuron to fire: gate, without one up; for dReLU both."""
        gate, up = self.ffn.gate, self.ffn.up
        if gate is None:
            return (up,)
        return (gate, up) if self.ffn.activation.kind is ActivationKind.DRELU else (gate,)


@dataclass(frozen=True, slots=True)
class ScorePart:
    """score = (matrix @ input + offset) / noise, for every neuron.

    Attributes:
        matrix: [num_neurons, columns]; of experts, of all of them one after the other.
        offset: f32[num_neurons], or None for zeros.
        noise: f32[num_neurons] > 0, or None for ones.
    """

    matrix: Matrix
    offset: FloatArray | None = None
    noise: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class Scorer:
    """Scores that decide by a threshold: a neuron is active iff every part reaches it.

    Attributes:
        input: what is scored.
        parts: evaluated in this order, the later ones for neurons that passed only.
        fc1: hidden layer in front of the parts, [rank, hidden_size], or None.
        center: f32[hidden_size] subtracted from the input first, or None.
        num_experts: hidden layers that `fc1` holds one after the other, [num_experts * rank,
            hidden_size], each for the neurons of one expert; 1: all neurons see the same.
    """

    input: PredictorInput
    parts: tuple[ScorePart, ...]
    fc1: Matrix | None = None
    center: FloatArray | None = None
    num_experts: int = 1

    def stages(self, ops: SomeOps, threshold: float) -> tuple[SomeStage, ...]:
        """The parts as tests with this threshold."""
        return tuple(_stage(ops, part, threshold) for part in self.parts)


@dataclass(frozen=True, slots=True)
class LayerPredictor:
    """The predictor of one layer.

    Attributes:
        kind: its name, for example ``lowbit:2``.
        input: which activations it looks at.
        active_ids: asked for the neurons of each token, where the FFN call does not predict by
            itself (`FFN.predictor`).
    """

    kind: str
    input: PredictorInput
    active_ids: AsksNeurons | None = None

    def select_input(self, x: ArrayT, raw: ArrayT) -> ArrayT:
        """Which of its layer's activations it looks at.

        Args:
            x: f32[num_tokens, hidden_size], input of the FFN.
            raw: f32[num_tokens, hidden_size], what the architecture's own predictors look at.
        """
        return x if self.input is _FFN_INPUT else raw

    def select(
        self,
        ops: SomeOps,
        ffn: SomeFFN,
        x: Activations,
        raw: Activations,
        is_prompt: BoolArray | None = None,
    ) -> ActiveIds:
        """The neurons that the layer computes for each token, without computing them.

        Of experts, those of all of them that pass; the FFN call ignores those of experts that a
        token is not given to.

        Args:
            ops: the backend that prepared `ffn`.
            ffn: block of the layer.
            x: see `select_input`.
            raw: see `select_input`.
            is_prompt: bool[num_tokens], see `powerinfer.ops.protocol.Computes`.

        Raises:
            UnsupportedError: neither this nor the FFN call can tell.
        """
        predictor_input = self.select_input(x, raw)
        if self.active_ids is not None:
            return self.active_ids(ops.to_host(predictor_input), is_prompt)
        if ffn.predictor is None:
            raise UnsupportedError(f"predictor {self.kind} was not prepared with its FFN")
        return ops.predict(ops.to_host(predictor_input), ffn.predictor, is_prompt)


def fused_predictor(
    ops: SomeOps, scorers: tuple[Scorer, ...], thresholds: tuple[float, ...]
) -> SomePredictor:
    """One predictor for the FFN call from scorers that share their input.

    Args:
        ops: the backend.
        scorers: cascade; only a single one may have a hidden layer.
        thresholds: of each.
    """
    first = scorers[0]
    stages = [
        stage
        for scorer, threshold in zip(scorers, thresholds, strict=True)
        for stage in scorer.stages(ops, threshold)
    ]
    center = None if first.center is None else ops.constant(first.center)
    return ops.neuron_predictor(
        NeuronPredictor(
            first.fc1, center, tuple(stages), num_experts=first.num_experts, native=None
        )
    )


def _stage(ops: SomeOps, part: ScorePart, threshold: float) -> SomeStage:
    """Fold offset and noise into one bias per neuron, so that a test is one addition."""
    if part.noise is None:
        bias = None if part.offset is None else ops.constant(part.offset)
        return ScoreStage(part.matrix, bias, threshold)
    if np.isneginf(threshold):
        return ScoreStage(part.matrix, None, threshold)
    offset = np.float32(0) if part.offset is None else part.offset
    shift = (offset - np.float32(threshold) * part.noise).astype(np.float32)
    return ScoreStage(part.matrix, ops.constant(shift), 0.0)
