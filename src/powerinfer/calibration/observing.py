"""`LLM(observe=...)`: shows input, decision and output of each layer's FFN, step by step.

A `StepObserver` of the model takes input and output as they pass by. Gate and up are computed once
more, in full, because the FFN call skips most of them and keeps none. These reads are not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from powerinfer.calibration.ffn_inputs import FFNInputs, InputCollector
from powerinfer.calibration.ground_truth import Mask, firing_neurons
from powerinfer.calibration.routing import Routing
from powerinfer.errors import PromptError
from powerinfer.models import Batch, Model
from powerinfer.models.blocks import Observer, Stage, StepObserver, marks_of
from powerinfer.models.metrics import uncounted
from powerinfer.options.options import CPU, EngineOptions
from powerinfer.values import FloatArray, IntArray

__all__ = ["FFNObservation", "FFNObserver", "observable", "observed"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FFNObservation:
    """The FFN of one layer in one step: its input, decision and output for each token.

    The arrays belong to whoever is called: they may be kept and written to. In a mixture of experts
    those of neurons have only the neurons of the experts that a token is given to: with n neurons
    per expert, column j * n + i is neuron i of expert ``experts[token, j]``.

    Attributes:
        layer: its number, from 0.
        kind: what decided which neurons ran: `off`, `exact`, `threshold` or a predictor kind.
        token_ids: i32[num_tokens], what went in. The last layer computes only tokens whose logits
            are wanted: of a prompt the last one.
        positions: i32[num_tokens], their positions, each in its sequence.
        sequences: i32[num_tokens], which of the sequences of this step each belongs to, from 0.
        input: f32[num_tokens, hidden_size], what the FFN gets, normalised.
        gate: f32[num_tokens, intermediate_size], product of gate and input, bias included, before
            the activation; None for an FFN without gate.
        up: f32[num_tokens, intermediate_size], the same of up.
        fires: bool[num_tokens, intermediate_size], neurons that are not zero, by `gate` and `up`;
            all of them where the activation is never zero.
        predicted: bool[num_tokens, intermediate_size], neurons that the predictor let pass; None
            where no predictor decides.
        output: f32[num_tokens, hidden_size], what the FFN returned, bias included: the model goes
            on with exactly these numbers.
        experts: i32[num_tokens, num_used], experts that each token is given to, ascending; None for
            an FFN without experts.
        expert_weights: f32[num_tokens, num_used], what their outputs are multiplied with; or None.
    """

    layer: int
    kind: str
    token_ids: IntArray
    positions: IntArray
    sequences: IntArray
    input: FloatArray
    gate: FloatArray | None
    up: FloatArray
    fires: Mask
    predicted: Mask | None
    output: FloatArray
    experts: IntArray | None = None
    expert_weights: FloatArray | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that this layer computed in this step."""
        return len(self.token_ids)

    def __repr__(self) -> str:
        """Show the sizes, without the numbers in its arrays."""
        num_used = 1 if self.experts is None else self.experts.shape[1]
        return (
            f"FFNObservation(layer={self.layer}, kind={self.kind!r}, num_tokens={self.num_tokens}, "
            f"hidden_size={self.input.shape[1]}, "
            f"intermediate_size={self.up.shape[1] // num_used})"
        )


FFNObserver: TypeAlias = Callable[[FFNObservation], object]
"""Called for each layer of each step, in order; what it returns is ignored."""


def observable(options: EngineOptions, observe: object) -> EngineOptions:
    """The same options for a model that `observe` watches, which the CPU runs alone."""
    if not callable(observe):
        raise PromptError(f"observe must be a function of one argument, got {observe!r:.60}")
    if options.measure_recall:
        raise PromptError(
            "observe and measure_recall cannot watch a model at the same time",
            remedy="leave observe or {measure_recall} out",
        )
    if options.wants_gpu:
        raise PromptError(
            "observe works on the CPU alone", remedy=f"leave it or {options.gpu_wish} out"
        )
    return replace(options, device=CPU)


def observed(model: Model, observe: FFNObserver) -> Model:
    """The same model, shown to `observe` in every step that names no other observer."""
    return replace(model, observer=_Watch(model, observe))


class _Watch(StepObserver):
    """Collects the stages of each step and hands them on layer by layer."""

    def __init__(self, model: Model, observe: FFNObserver) -> None:
        self._model = model
        self._kinds = model.layer_kinds
        self._observe = observe

    def of_step(self, batch: Batch, logits_for: IntArray | None) -> Observer:
        """Watch one step."""
        collector = InputCollector()
        begun: list[Callable[..., FFNObservation]] = []

        def observe(stage: Stage, number: int, x: FloatArray) -> None:
            inputs = collector.see(stage, x)
            if inputs is not None and len(x):
                wanted = logits_for if number + 1 == len(self._kinds) else None
                with uncounted(self._model.ops.counters):
                    begun.append(self._begin(number, inputs, batch, wanted))
            elif stage is Stage.FFN_OUTPUT and begun:
                self._observe(begun.pop()(output=np.array(x)))

        return observe

    def _begin(
        self, number: int, inputs: FFNInputs, batch: Batch, wanted: IntArray | None
    ) -> Callable[..., FFNObservation]:
        """Make all of an observation but the output, which comes later.

        The layer computes only the `wanted` tokens of the batch; None for all.
        """
        ops, layer = self._model.ops, self._model.weights.layers[number]
        ffn, predictor, x = layer.ffn, layer.predictor, np.array(inputs.x)
        linears = (ffn.up,) if ffn.gate is None else (ffn.gate, ffn.up)
        rows = slice(None) if wanted is None else wanted
        marks = marks_of(batch, wanted)
        routing = Routing.of(ops, ffn, x, inputs.router, marks)
        products = [routing.take(ops.to_host(part)) for part in ops.linear(x, linears, marks)]
        gate, up = None if ffn.gate is None else products[0], products[-1]
        predicted = None
        if predictor is not None:
            predicted = routing.mask(predictor.select(ops, ffn, x, inputs.raw, marks))
        return partial(
            FFNObservation,
            layer=number,
            kind=self._kinds[number],
            token_ids=np.array(batch.token_ids[rows]),
            positions=np.array(batch.positions[rows]),
            sequences=np.array(batch.sequences[rows]),
            input=x,
            gate=gate,
            up=up,
            fires=firing_neurons(ffn.activation, gate, up),
            predicted=predicted,
            experts=None if ffn.router is None else routing.experts,
            expert_weights=None if ffn.router is None else routing.weights,
        )
