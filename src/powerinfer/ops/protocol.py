"""What a backend must offer: the operations `forward` is written in, their shapes and errors.

`models/architectures/*` call these and nothing else, so one model file runs on the numpy
reference (the oracle), the native CPU backend, the GPU backend and the hybrid of both.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from powerinfer.gguf import Tensor
from powerinfer.ops.operands import (
    FFN,
    ActiveIds,
    FFNCounters,
    KVLayer,
    KVType,
    Linear,
    Matrix,
    MatrixUse,
    NeuronPredictor,
    RopeTable,
    ScoreStage,
    Vector,
)
from powerinfer.values import Batch, FloatArray, IntArray

# The operands belong to the protocol: who implements or calls it takes them from here.
__all__ = [
    "FFN",
    "ActiveIds",
    "FFNCounters",
    "KVLayer",
    "KVType",
    "Linear",
    "Matrix",
    "MatrixUse",
    "NeuronPredictor",
    "Ops",
    "RopeTable",
    "ScoreStage",
    "Vector",
]


class Ops(Protocol):
    """A device. Activations are f32 C-contiguous arrays of the device; ids are i32."""

    name: str
    counters: FFNCounters

    def matrix(self, tensor: Tensor, use: MatrixUse) -> Matrix:
        """Prepare a weight matrix [rows, columns]; may keep a view of `tensor.data`.

        Raises:
            UnsupportedError: the tensor's format has no kernel here.
            ShapeError: the tensor is not two-dimensional.
        """
        ...

    def vector(self, tensor: Tensor) -> Vector:
        """Prepare a norm weight or bias as f32[n]."""
        ...

    def constant(self, values: FloatArray) -> Vector:
        """Prepare f32[n] that comes from no file."""
        ...

    def vector_values(self, vector: Vector) -> FloatArray:
        """The f32[n] of a vector."""
        ...

    def matrix_bytes(self, matrix: Matrix) -> int:
        """Bytes read when every row of `matrix` is used once."""
        ...

    def matrix_shape(self, matrix: Matrix) -> tuple[int, int]:
        """Rows and columns; of a copy made by `recode` the columns as padded."""
        ...

    def ffn_weights(self, ffn: FFN) -> FFN:
        """Return `ffn` with `native` filled in; called once per layer at load."""
        ...

    def recode(self, matrix: Matrix, format_name: str) -> Matrix:
        """A copy of a matrix in another weight format, for predictors.

        Columns are padded with zeros to whole blocks of the format. The copy lives in memory of
        the backend's own, until it is dropped.

        Raises:
            UnsupportedError: there is no encoder for the format.
            NumericsError: a row holds NaN, infinity or numbers beyond the format's scale.
        """
        ...

    def copy_statistics(
        self, matrix: Matrix, copy: Matrix, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What a copy made by `recode` loses on inputs with these statistics.

        Args:
            matrix: [rows, columns], the original.
            copy: [rows, columns or more], the copy.
            mean: f32[columns], mean of the input.
            variance: f32[columns], variance of the input.

        Returns:
            offset f32[rows] = matrix @ mean, and noise f32[rows], the standard deviation of
            (matrix - copy) @ (input - mean) with independent inputs; never 0. For `sign` copies
            noise counts that the input is binarised too.

        Raises:
            ShapeError: the sizes do not fit each other.
        """
        ...

    def neuron_predictor(self, predictor: NeuronPredictor) -> NeuronPredictor:
        """Return `predictor` with `native` filled in.

        Raises:
            ShapeError: its matrices do not fit each other.
        """
        ...

    def predict(self, x: FloatArray, predictor: NeuronPredictor) -> ActiveIds:
        """The neurons that pass, per token: ascending ids.

        Args:
            x: f32[num_tokens, hidden_size], the predictor's input.
            predictor: prepared by `neuron_predictor`.
        """
        ...

    def embed(self, table: Matrix, token_ids: IntArray) -> FloatArray:
        """Rows of `table`: f32[num_tokens, hidden_size]."""
        ...

    def rms_norm(self, x: FloatArray, weight: Vector, eps: float) -> FloatArray:
        """Per row x / sqrt(mean(x^2) + eps) * weight: f32[num_tokens, hidden_size]."""
        ...

    def layer_norm(
        self, x: FloatArray, weight: Vector, bias: Vector | None, eps: float
    ) -> FloatArray:
        """(x - mean) / sqrt(var + eps) * weight + bias, population variance, per row."""
        ...

    def linear(self, x: FloatArray, layers: Sequence[Linear]) -> list[FloatArray]:
        """Several products of one input: f32[num_tokens, out_features] each.

        A matrix of format `sign` multiplies the signs of x, times the mean magnitude of its row.
        One call so that x is quantized once and threads are woken once.
        """
        ...

    def rope_and_store(
        self,
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        cache: KVLayer,
        batch: Batch,
        rope: RopeTable | None,
    ) -> None:
        """Rotate q and k in place by their positions, then write k and v into the cache.

        q is f32[num_tokens, num_heads * head_dim]; k and v are
        f32[num_tokens, num_kv_heads * head_dim].
        """
        ...

    def new_kv_layer(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
        *,
        layer: int = 0,
    ) -> KVLayer:
        """Uninitialised cache of one layer: `num_blocks` blocks of `block_size` positions.

        It lies where the attention of the layer with this number runs.
        """
        ...

    def attention(
        self, q: FloatArray, cache: KVLayer, batch: Batch, scale: float, window: int | None = None
    ) -> FloatArray:
        """Causal grouped-query attention over the cache (the step's own k, v are stored already).

        A token at position p sees positions max(0, p - window + 1) .. p of its own sequence; query
        head h uses KV head h // (num_heads / num_kv_heads).

        Returns:
            f32[num_tokens, num_heads * head_dim].
        """
        ...

    def ffn(self, x: FloatArray, ffn: FFN, predictor_input: FloatArray | None = None) -> FloatArray:
        """down(activation(gate x, up x)): f32[num_tokens, hidden_size], in one call.

        With `ffn.predictor`, neurons that it does not let pass count as zero. Paper: "Neuron-aware
        Operator". Adds to `counters`.

        Args:
            x: f32[num_tokens, hidden_size], normalised.
            ffn: prepared by `ffn_weights`.
            predictor_input: f32[num_tokens, hidden_size], what the predictor sees; None for `x`.
        """
        ...

    def start_ffn(
        self, x: FloatArray, ffn: FFN, predictor_input: FloatArray | None = None
    ) -> Callable[[], FloatArray]:
        """Begin what `ffn` does; calling the result ends it and returns what `ffn` returns.

        In between other work that does not touch `x` may be queued: where attention and FFN lie
        side by side, a backend of two devices hides one behind the other.
        """
        ...

    def ffn_active(self, x: FloatArray, ffn: FFN, active: ActiveIds) -> FloatArray:
        """The same over listed neurons only, for predictors that run outside the backend.

        Args:
            x: f32[num_tokens, hidden_size].
            ffn: prepared by `ffn_weights`; its predictor is not asked.
            active: the neurons of each token.

        Raises:
            IndexError: ids are not ascending or out of range.
        """
        ...

    def add(self, x: FloatArray, y: FloatArray) -> None:
        """Add y to x in place."""
        ...

    def take_rows(self, x: FloatArray, rows: IntArray) -> FloatArray:
        """Rows of an activation, in the order of `rows`: f32[len(rows), columns]."""
        ...

    def to_host(self, x: FloatArray) -> FloatArray:
        """The numbers of an activation as a numpy array; waits for them."""
        ...

    def step(
        self,
        x: FloatArray,
        batch: Batch,
        run: Callable[[FloatArray, Batch], FloatArray],
        key: Hashable | None,
    ) -> FloatArray:
        """Run the layers of one step: ``run(x, batch)`` on this backend's own arrays.

        Args:
            x: f32[num_tokens, hidden_size], made by `embed`.
            batch: its tokens.
            run: calls operations of this backend only; returns f32[num_selected, vocab_size].
            key: what else than x, the numbers in `batch` and the weights the calls depend on. A
                backend may record them under this key and the sizes in `batch`, and replay the
                record in place of `run`. None: `run` must be called.

        Returns:
            What `run` returned, on the host.
        """
        ...
