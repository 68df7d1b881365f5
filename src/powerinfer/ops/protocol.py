"""What a backend must offer: the operations `forward` is written in, their shapes and errors.

`models/architectures/*` call these and nothing else, so one model file runs on the numpy
reference (the oracle), the native CPU backend and, later, the GPU and the hybrid of both.
Handles (`Matrix`, `Vector`, ...) are opaque: only the backend that made one may look inside.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

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
    """What a matrix is for; a backend chooses its memory layout by it.

    DENSE: every row is read for every token (attention, output head): may be repacked.
    NEURONS: rows are neurons that may be skipped: rows stay rows.
    EMBEDDING: single rows are looked up.
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
        native: the backend's own prepared form, made by `Ops.ffn_weights`.
    """

    gate: Linear | None
    up: Linear
    down: Linear
    activation: Activation
    is_down_transposed: bool
    is_exact_sparse: bool
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
        total: neurons there were, summed over tokens and layers.
        bytes_read: weight bytes really read by FFN calls.
    """

    active: int = 0
    total: int = 0
    bytes_read: int = 0


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

    def matrix_bytes(self, matrix: Matrix) -> int:
        """Bytes read when every row of `matrix` is used once."""
        ...

    def ffn_weights(self, ffn: FFN) -> FFN:
        """Return `ffn` with `native` filled in; called once per layer at load."""
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

    def ffn(self, x: FloatArray, ffn: FFN) -> FloatArray:
        """down(activation(gate x, up x)): f32[num_tokens, hidden_size], in one call.

        Paper: "Neuron-aware Operator". Adds to `counters`.
        """
        ...

    def add(self, x: FloatArray, y: FloatArray) -> None:
        """Add y to x in place."""
        ...
