"""The quality of predictors: hits, passes, and the effect of skipped neurons on the output.

An observer of the model's steps computes every FFN twice more, in full and as the model runs it.
That costs far more than predictors save, so measured speed means nothing while it observes. Its
own reads are not counted.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.ffn_inputs import FFNInputs, InputCollector
from powerinfer.calibration.ground_truth import token_chunks
from powerinfer.calibration.routing import Routing
from powerinfer.models import LayerWeights, Model, layer_source
from powerinfer.models.blocks import Observer, Stage, StepObserver, marks_of
from powerinfer.models.metrics import uncounted
from powerinfer.models.sparsity import layers_to_count
from powerinfer.ops.backend import SomeFFN
from powerinfer.predictors import get_kind
from powerinfer.predictors.predictor import AsksNeurons
from powerinfer.values import Batch, BoolArray, FloatArray, IntArray

__all__ = ["LayerRecall", "RecallMeter", "recall_meter", "with_recall_meter"]

Mask = npt.NDArray[np.bool_]

_Truth: TypeAlias = Callable[[FloatArray, BoolArray | None], Mask]
"""Finds the firing neurons bool[num_tokens, num_neurons] of f32[num_tokens, hidden_size]."""

# The kind that knows which neurons really fire.
_TRUTH = "oracle"


@dataclass(slots=True)
class LayerRecall:
    """Sums over all tokens of one layer; of experts, over the neurons of those chosen alone.

    Attributes:
        kind: what decides in this layer: `off`, `exact`, `threshold` or a predictor kind.
        firing: neurons that fired.
        predicted: neurons that the predictor let pass; all of them where there is none.
        found: neurons that did both.
        total: neurons there were.
        error_square: sum of |y - y_sparse|^2, y being the FFN's output.
        output_square: sum of |y|^2.
    """

    kind: str
    firing: int = 0
    predicted: int = 0
    found: int = 0
    total: int = 0
    error_square: float = 0.0
    output_square: float = 0.0

    @property
    def recall(self) -> float | None:
        """Share of the firing neurons that the predictor let pass; None before anything fired."""
        return self.found / self.firing if self.firing else None

    @property
    def precision(self) -> float | None:
        """Share of the neurons let pass that fired; None before any passed."""
        return self.found / self.predicted if self.predicted else None

    @property
    def ffn_error(self) -> float | None:
        """sqrt(sum |y - y_sparse|^2 / sum |y|^2); None before there was any output."""
        if not self.output_square:
            return None
        return float(np.sqrt(self.error_square / self.output_square))

    @property
    def firing_share(self) -> float | None:
        """Share of all neurons that fired."""
        return self.firing / self.total if self.total else None

    @property
    def predicted_share(self) -> float | None:
        """Share of all neurons that the predictor let pass."""
        return self.predicted / self.total if self.total else None


class RecallMeter(StepObserver):
    """Adds up what predictors miss, computing prompt and generated tokens as the model does.

    Attributes:
        has_experts: only neurons of the experts that tokens are given to are counted.
    """

    def __init__(self, model: Model) -> None:
        self._ops = model.ops
        self._kinds = model.layer_kinds
        self._watched = {
            number: _Watched(
                layer, _full(model, layer.ffn), _truth(model, number), _kept(model, number)
            )
            for number, layer in enumerate(model.weights.layers)
            if number in model.config.counted_layers
        }
        self.layers: tuple[LayerRecall, ...] = ()
        self.has_experts = model.config.experts is not None
        self.reset()

    def reset(self) -> None:
        """Start again at zero."""
        self.layers = tuple(LayerRecall(kind) for kind in self._kinds)

    def of_step(self, batch: Batch, logits_for: IntArray | None) -> Observer:
        """Add up one step."""
        collector = InputCollector()

        def observe(stage: Stage, number: int, x: FloatArray) -> None:
            inputs = collector.see(stage, x)
            if inputs is None or number not in self._watched:
                return
            is_last = number + 1 == len(self._kinds)
            marks = marks_of(batch, logits_for if is_last else None)
            with uncounted(self._ops.counters):
                for chunk in token_chunks(len(inputs.x)):
                    self._add(number, inputs.rows(chunk), None if marks is None else marks[chunk])

        return observe

    def _add(self, number: int, inputs: FFNInputs, is_prompt: BoolArray | None) -> None:
        watched, sums, x = self._watched[number], self.layers[number], inputs.x
        routing = Routing.of(self._ops, watched.full, x, inputs.router, is_prompt)
        fires = routing.take(watched.truth(x, is_prompt))
        full = self._ops.ffn(x, watched.full, None, is_prompt, inputs.router)
        y = self._ops.to_host(full).astype(np.float64)
        sums.firing += int(fires.sum())
        sums.total += fires.size
        sums.output_square += float((y * y).sum())
        predictor, ffn = watched.layer.predictor, watched.layer.ffn
        if predictor is not None:
            active = predictor.select(self._ops, ffn, x, inputs.raw, is_prompt)
        elif watched.kept is not None:
            active = watched.kept(x, is_prompt)
        else:
            sums.predicted += fires.size
            sums.found += int(fires.sum())
            return
        passes = routing.mask(active)
        sums.predicted += int(passes.sum())
        sums.found += int((fires & passes).sum())
        found = self._ops.ffn_active(x, watched.full, active, is_prompt, inputs.router)
        lost = y - self._ops.to_host(found)
        sums.error_square += float((lost * lost).sum())


@dataclass(frozen=True, slots=True)
class _Watched:
    """A layer with its block as computed without a predictor, and which neurons really fire.

    Attributes:
        kept: neurons that a threshold on the activation keeps; None without one.
    """

    layer: LayerWeights
    full: SomeFFN
    truth: _Truth
    kept: AsksNeurons | None


def with_recall_meter(model: Model) -> Model:
    """The same model, watched by a `RecallMeter`."""
    layers_to_count(model.config)
    return replace(model, observer=RecallMeter(model))


def recall_meter(model: Model) -> RecallMeter | None:
    """The meter that watches the model, or None."""
    return model.observer if isinstance(model.observer, RecallMeter) else None


def _full(model: Model, ffn: SomeFFN) -> SomeFFN:
    activation = model.config.activation
    if ffn.predictor is None and ffn.activation == activation:
        return ffn
    ffn = replace(ffn, predictor=None, activation=activation, is_exact_sparse=activation.is_sparse)
    return model.ops.ffn_weights(ffn)


def _kept(model: Model, number: int) -> AsksNeurons | None:
    is_cut = model.weights.layers[number].ffn.activation.is_cut
    return _firing(model, number) if is_cut else None


def _firing(model: Model, number: int) -> AsksNeurons | None:
    find = get_kind(_TRUTH).active_ids
    return None if find is None else find(model.ops, layer_source(model, number, None), "")


def _truth(model: Model, number: int) -> _Truth:
    num_neurons = model.config.num_neurons
    active_ids = _firing(model, number) if model.config.activation.is_sparse else None
    if active_ids is None:
        return lambda x, _: np.ones((len(x), num_neurons), bool)
    return lambda x, is_prompt: active_ids(x, is_prompt).mask(num_neurons)
