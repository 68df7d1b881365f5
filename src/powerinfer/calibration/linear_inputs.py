"""The sizes of the inputs of a model's matrices on a text: the sums of their squares.

The model runs over windows of the text while an observer takes the inputs of attention and FFN.
The inputs of the down projection are computed once more, because the FFN call keeps none of them.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.calibration.ffn_inputs import FFNInputs, InputCollector
from powerinfer.calibration.ground_truth import neuron_values, token_chunks
from powerinfer.calibration.routing import Routing
from powerinfer.calibration.window_pass import check_finite, run_windows
from powerinfer.models import Model
from powerinfer.models.blocks import Observer, Stage, StepObserver
from powerinfer.models.experts import SHARED
from powerinfer.models.mixers import AttentionWeights
from powerinfer.models.per_layer import GATE, OUTPUT, PROJECTION
from powerinfer.models.tensors.ffn_tensors import LATENT
from powerinfer.ops.backend import SomeFFN
from powerinfer.values import Batch, FloatArray, IntArray

__all__ = ["InputSquares", "measure_inputs"]

_PER_LAYER = {Stage.PER_LAYER_INPUT: GATE, Stage.PER_LAYER_MIX: OUTPUT}


@dataclass(frozen=True, slots=True, eq=False)
class InputSquares:
    """Squared inputs of one tensor.

    Attributes:
        sums: f64[num_matrices, columns], sums of squares over tokens; one matrix per expert.
        counts: i64[num_matrices], tokens summed.
    """

    sums: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def zeros(cls, num_matrices: int, columns: int) -> "InputSquares":
        """Start with no tokens."""
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
    """Run a model over windows of text and sum the squares of its matrices' inputs.

    The model is on the CPU and computes all neurons. Results have the tensor names of its file, but
    down projections always plain ones (``ffn_down``), and single experts those of merged ones.
    `progress` is called after each layer with the tokens done, those of a window counting by layer.
    """
    meter = _Meter(model, names, progress)
    for window in windows:
        run_windows(model, np.array([window], np.int32), meter)
    return meter.found


class _Meter(StepObserver):
    """The observer of each window."""

    def __init__(
        self, model: Model, names: Collection[str], progress: Callable[[int], None] | None
    ) -> None:
        self._model = model
        self._names = frozenset(names)
        self._progress = progress
        self._done = 0
        self._inputs = InputCollector()
        self.found: dict[str, InputSquares] = {}

    def of_step(self, batch: Batch, logits_for: IntArray | None) -> Observer:
        """Add what no layer sees; return the observer of the layers."""
        if self._model.weights.per_layer is not None:
            self._add_full(f"{PROJECTION}.weight", self._model.embed(batch))
        return self._see

    def _see(self, stage: Stage, number: int, x: FloatArray) -> None:
        layer = self._model.weights.layers[number]
        if stage is Stage.ATTENTION_INPUT:
            is_fused = f"blk.{number}.attn_qkv.weight" in self._names
            is_joined = is_fused and isinstance(layer.mixer, AttentionWeights)
            names = ("attn_qkv",) if is_joined else layer.mixer.input_names
            # Some layers read keys and values of others, or have no matrix for values.
            self._add(number, [n for n in names if f"blk.{number}.{n}.weight" in self._names], x)
        elif stage is Stage.ATTENTION_MIX:
            self._add(number, (layer.mixer.output_name,), x)
        elif stage is Stage.FFN_OUTPUT and layer.latent is not None:
            self._add(number, LATENT[1:], x)
        elif stage is Stage.SHARED_INPUT and layer.shared_ffn is not None:
            self._add_dense(number, layer.shared_ffn, x, "")
        elif stage is Stage.FFN:
            num_layers = self._model.config.num_layers
            if self._progress is not None:
                self._progress(self._done + len(x) * (number + 1) // num_layers)
            self._done += len(x) if number + 1 == num_layers else 0
        elif stage in _PER_LAYER:
            self._add(number, (_PER_LAYER[stage],), x)
        inputs = self._inputs.see(stage, x)
        if inputs is not None:
            self._add_ffn(number, inputs)

    def _add_ffn(self, number: int, inputs: FFNInputs) -> None:
        layer = self._model.weights.layers[number]
        if layer.ffn.router is None:
            self._add_dense(number, layer.ffn, inputs.x, "")
            return
        whole = inputs.x
        if layer.latent is not None and inputs.router is not None:
            # Experts see its projection.
            whole = inputs.router
            self._add(number, LATENT[:1], whole)
        experts = self._model.config.experts
        has_own_input = experts is not None and experts.has_dense_ffn
        if layer.shared_ffn is not None and not has_own_input:
            self._add_dense(number, layer.shared_ffn, whole, SHARED)
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
        """Add the tokens that the router gives to each expert."""
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
            self._add_full(f"blk.{number}.{name}.weight", x, matrix, num_matrices)

    def _add_full(self, name: str, x: FloatArray, matrix: int = 0, num_matrices: int = 1) -> None:
        if name not in self.found:
            self.found[name] = InputSquares.zeros(num_matrices, x.shape[1])
        self.found[name].add(matrix, x)
        check_finite(self.found[name].sums[matrix], f"the input of {name}")
