"""How large the inputs of a model's matrices are on a text: the sums of their squares.

The model runs over windows of the text while an observer takes what attention and FFN get. What
the down projection gets is computed once more, because the FFN call keeps none of it.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.ffn_inputs import FFNInputs, InputCollector
from powerinfer.calibration.ground_truth import neuron_values, token_chunks
from powerinfer.calibration.routing import Routing
from powerinfer.errors import NumericsError
from powerinfer.models import Model
from powerinfer.models.blocks import Stage, StepControl
from powerinfer.ops.some_backend import SomeFFN
from powerinfer.values import FloatArray

__all__ = ["InputSquares", "measure_inputs"]


@dataclass(frozen=True, slots=True, eq=False)
class InputSquares:
    """Of one tensor.

    Attributes:
        sums: f64[num_matrices, columns], sums of squares over tokens; one matrix per expert.
        counts: i64[num_matrices], tokens summed.
    """

    sums: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def zeros(cls, num_matrices: int, columns: int) -> "InputSquares":
        """Of no tokens."""
        return cls(np.zeros((num_matrices, columns)), np.zeros(num_matrices, np.int64))

    def add(self, matrix: int, x: FloatArray) -> None:
        """Add f32[num_tokens, columns], inputs of one of the matrices."""
        self.sums[matrix] += np.square(x).sum(axis=0, dtype=np.float64)
        self.counts[matrix] += len(x)


def measure_inputs(
    model: Model,
    names: Collection[str],
    windows: Iterable[list[int]],
    progress: Callable[[int], None] | None = None,
) -> dict[str, InputSquares]:
    """Run a model over windows of text and sum what its matrices are multiplied with.

    Args:
        model: to run, on the CPU, without anything that loses neurons.
        names: of the tensors in its file. Results are named like them, but down projections always
            as plain ones (``ffn_down``), and those of single experts as merged ones.
        windows: token ids; no window sees another.
        progress: called after each layer with the tokens done, those of a window counting by layer.

    Raises:
        NumericsError: an input holds NaN or infinity.
    """
    meter = _Meter(model, names)
    done = 0
    for window in windows:
        cache = model.new_cache(len(window))
        batch = cache.batch([(0, window, 0)], [True])
        meter.report = _reporting(progress, done, len(window), model.config.num_layers)
        model.forward(batch, cache, observe=meter)
        done += len(window)
    return meter.found


def _reporting(
    progress: Callable[[int], None] | None, done: int, window: int, num_layers: int
) -> Callable[[int], None]:
    def report(layer: int) -> None:
        if progress is not None:
            progress(done + window * (layer + 1) // num_layers)

    return report


class _Meter:
    """The observer, which ends each step with the last layer: logits are not needed."""

    def __init__(self, model: Model, names: Collection[str]) -> None:
        self._model = model
        self._names = frozenset(names)
        self._inputs = InputCollector()
        self.found: dict[str, InputSquares] = {}
        self.report: Callable[[int], None] = lambda _layer: None

    def __call__(self, stage: Stage, number: int, x: FloatArray) -> StepControl | None:
        if stage is Stage.ATTENTION_INPUT:
            is_fused = f"blk.{number}.attn_qkv.weight" in self._names
            parts = ("attn_qkv",) if is_fused else ("attn_q", "attn_k", "attn_v")
            self._add(number, parts, x)
        elif stage is Stage.ATTENTION_MIX:
            self._add(number, ("attn_output",), x)
        elif stage is Stage.FFN:
            self.report(number)
            return StepControl.STOP if number + 1 == self._model.config.num_layers else None
        inputs = self._inputs.see(stage, x)
        if inputs is not None:
            self._add_ffn(number, inputs)
        return None

    def _add_ffn(self, number: int, inputs: FFNInputs) -> None:
        layer = self._model.weights.layers[number]
        if layer.ffn.router is None:
            self._add_dense(number, layer.ffn, inputs.x, "")
            return
        if layer.shared_ffn is not None:
            self._add_dense(number, layer.shared_ffn, inputs.x, "_shexp")
        self._add_experts(number, layer.ffn, inputs)

    def _add_dense(self, number: int, ffn: SomeFFN, x: FloatArray, end: str) -> None:
        up = ("ffn_up",) if ffn.gate is None else ("ffn_gate", "ffn_up")
        self._add(number, [f"{name}{end}" for name in up], x)
        routing = Routing.of(self._model.ops, ffn, x)
        for chunk in token_chunks(len(x)):
            part = np.ascontiguousarray(x[chunk])
            _, values = neuron_values(self._model.ops, ffn, part, routing.rows(chunk))
            self._add(number, (f"ffn_down{end}",), values)

    def _add_experts(self, number: int, ffn: SomeFFN, inputs: FFNInputs) -> None:
        """Each expert sees the tokens that the router gives to it."""
        x, ops = inputs.x, self._model.ops
        marks = np.ones(len(x), bool)
        whole = Routing.of(ops, ffn, x, inputs.router, marks)
        is_fused = f"blk.{number}.ffn_gate_up_exps.weight" in self._names
        gated = ("ffn_gate_up_exps",) if is_fused else ("ffn_gate_exps", "ffn_up_exps")
        names = ("ffn_up_exps",) if ffn.gate is None else gated
        self._add(number, ("ffn_gate_inp",), x if inputs.router is None else inputs.router)
        for chunk in token_chunks(len(x)):
            part, routing = np.ascontiguousarray(x[chunk]), whole.rows(chunk)
            _, values = neuron_values(ops, ffn, part, routing)
            by_place = values.reshape(*routing.experts.shape, -1)
            for expert in range(ffn.num_experts):
                tokens, places = np.nonzero(routing.experts == expert)
                of = (expert, ffn.num_experts)
                self._add(number, names, part[tokens], *of)
                self._add(number, ("ffn_down_exps",), by_place[tokens, places], *of)

    def _add(
        self,
        number: int,
        names: Iterable[str],
        x: FloatArray,
        matrix: int = 0,
        num_matrices: int = 1,
    ) -> None:
        for name in names:
            full = f"blk.{number}.{name}.weight"
            if full not in self.found:
                self.found[full] = InputSquares.zeros(num_matrices, x.shape[1])
            self.found[full].add(matrix, x)
            if not np.isfinite(self.found[full].sums[matrix]).all():
                raise NumericsError(
                    f"measuring the model: the input of {full} holds NaN or infinity: the weights "
                    "are damaged, or the activation is not the model's",
                    remedy="name the right one with {activation}",
                )
