"""What a backend must offer: the operations `forward` is written in, their shapes and errors.

`models/architectures/*` call these and nothing else, so one model file runs on the numpy
reference (the oracle), the native CPU backend and, later, the GPU and the hybrid of both.
Handles (`Matrix`, `Vector`, ...) are opaque: only the backend that made one may look inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.gguf import Tensor
from powerinfer.values import Activation, Batch, FloatArray, IntArray

Matrix: TypeAlias = Any
Vector: TypeAlias = Any
KVLayer: TypeAlias = Any


class KVType(StrEnum):
    """Element type of the KV cache."""

    F16 = "f16"
    Q8_0 = "q8_0"


class MatrixUse(StrEnum):
    """How a matrix is read; a backend chooses its memory layout by it.

    DENSE: every row for every token (attention, output head, predictors): any layout will do.
    NEURONS: rows are neurons, of which any may be skipped: a row must stay readable by itself.
    EMBEDDING: a few rows are looked up: copying the matrix would cost more than it brings.

    The native backend has one layout for DENSE and NEURONS: its superblocks of Q4_0 keep rows
    whole, so it repacks every Q4_0 matrix whose rows fill superblocks, except an EMBEDDING.
    """

    DENSE = "dense"
    NEURONS = "neurons"
    EMBEDDING = "embedding"


@dataclass(frozen=True, slots=True)
class Linear:
    """y = x @ matrix.T + bias; matrix is [out_features, in_features]."""

    matrix: Matrix
    bias: Vector | None = None


@dataclass(frozen=True, slots=True)
class ActiveIds:
    """Neuron ids of several tokens.

    Attributes:
        offsets: i64[num_tokens + 1]; token t has ids[offsets[t]:offsets[t + 1]].
        ids: i32[offsets[-1]], strictly increasing within a token.
    """

    offsets: npt.NDArray[np.int64]
    ids: IntArray

    def of(self, token: int) -> IntArray:
        """Ids of one token."""
        chosen: IntArray = self.ids[self.offsets[token] : self.offsets[token + 1]]
        return chosen

    @classmethod
    def of_mask(cls, mask: npt.NDArray[np.bool_]) -> Self:
        """Ids where a bool[num_tokens, intermediate_size] is true."""
        offsets = np.zeros(len(mask) + 1, np.int64)
        np.cumsum(mask.sum(axis=1), out=offsets[1:])
        return cls(offsets, np.nonzero(mask)[1].astype(np.int32))


@dataclass(frozen=True, slots=True)
class ScoreStage:
    """One test of a predictor: neuron i passes iff matrix[i] . input + bias[i] >= threshold.

    A score that is NaN passes, so that damage is not hidden by skipping.

    Attributes:
        matrix: [intermediate_size, columns]; columns beyond the input's meet zeros.
        bias: f32[intermediate_size] or None.
        threshold: score at or above which a neuron may fire.
    """

    matrix: Matrix
    bias: Vector | None
    threshold: float


@dataclass(frozen=True, slots=True)
class NeuronPredictor:
    """What guesses which neurons of an FFN fire; the FFN call runs it first.

    The input, minus `center`, goes through ``relu(fc1 @ input)`` if there is `fc1`, then through
    the stages in order; a later stage sees only neurons that passed the earlier ones.

    Attributes:
        fc1: [rank, hidden_size] or None.
        center: f32[hidden_size] or None.
        stages: at least one.
        native: the backend's own prepared form, made by `Ops.neuron_predictor`.
    """

    fc1: Matrix | None
    center: Vector | None
    stages: tuple[ScoreStage, ...]
    native: Any = None


@dataclass(frozen=True, slots=True)
class FFN:
    """One feed-forward block.

    Attributes:
        gate: [intermediate_size, hidden_size] or None for an ungated FFN.
        up: [intermediate_size, hidden_size].
        down: [intermediate_size, hidden_size] if `is_down_transposed` (neuron i is row i), else
            [hidden_size, intermediate_size] (neuron i is column i).
        activation: what is applied between.
        is_exact_sparse: skip the rows of neurons that do not fire (activation must be sparse); the
            result equals the dense one up to rounding.
        predictor: decides which neurons are computed; None computes the gate of all.
        native: the backend's own prepared form, made by `Ops.ffn_weights`.
    """

    gate: Linear | None
    up: Linear
    down: Linear
    activation: Activation
    is_down_transposed: bool
    is_exact_sparse: bool
    predictor: NeuronPredictor | None = None
    native: Any = None


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Rotation angles of rotary position embedding (RoFormer, arXiv 2104.09864).

    Attributes:
        cos: f32[context_length, rotary_dim // 2], already scaled by YaRN's magnitude if any.
        sin: f32[context_length, rotary_dim // 2].
        is_interleaved: pairs are (2i, 2i+1) (GGUF `llama`); else (i, i + rotary_dim/2) (NeoX).
    """

    cos: FloatArray
    sin: FloatArray
    is_interleaved: bool

    @property
    def rotary_dim(self) -> int:
        """Leading dimensions of a head that rotate; the rest pass through."""
        return 2 * int(self.cos.shape[1])


@dataclass(slots=True)
class FFNCounters:
    """Running counts of what the FFN calls really did; a backend adds to them.

    Attributes:
        active: neurons whose result was used, summed over tokens and layers.
        predicted: neurons that a predictor let pass, summed likewise; without one, all of them.
        total: neurons there were, summed over tokens and layers.
        bytes_read: weight bytes really read by FFN calls, those of predictors included.
        predictor_bytes: of those, bytes of predictors.
        down_bytes: of those read, bytes of gathered rows of down.
        predictor_s: seconds spent in predictors, where the backend measures it.
        down_s: seconds spent gathering rows of down, likewise.
    """

    active: int = 0
    predicted: int = 0
    total: int = 0
    bytes_read: int = 0
    predictor_bytes: int = 0
    down_bytes: int = 0
    predictor_s: float = field(default=0.0, compare=False)
    down_s: float = field(default=0.0, compare=False)


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
        self, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, kv_type: KVType
    ) -> KVLayer:
        """Uninitialised cache of one layer: `num_blocks` blocks of `block_size` positions."""
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
