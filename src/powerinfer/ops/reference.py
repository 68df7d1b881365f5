"""The numpy reference: every operation written for reading, the oracle all backends are held to.

Weights are decoded to f32 once. Sums are taken in f64 and rounded to f32 at the end of each
operation, so what remains is the rounding of the inputs. Keys and values are really stored as f16
or Q8_0, because that rounding is part of the result. Nothing here is meant to be fast.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PowerInferError, ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.protocol import (
    FFN,
    FFNCounters,
    KVType,
    Linear,
    MatrixUse,
    RopeTable,
)
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind, Batch, FloatArray, IntArray

__all__ = ["ReferenceKV", "ReferenceMatrix", "ReferenceOps", "activate"]

DoubleArray = npt.NDArray[np.float64]

# Damaged files hold infinities and NaN: what they become is the engine's to find and name, not a
# warning's. A decorator, because almost every operation can meet them.
_quietly = np.errstate(all="ignore")


@dataclass(frozen=True, slots=True)
class ReferenceMatrix:
    """A decoded weight matrix.

    Attributes:
        values: f32[rows, columns].
        num_bytes: size of the encoded matrix, for counting what a real backend would read.
    """

    values: FloatArray
    num_bytes: int

    @property
    def row_bytes(self) -> int:
        """Encoded bytes of one row."""
        return self.num_bytes // max(1, len(self.values))


@dataclass(frozen=True, slots=True)
class ReferenceKV:
    """Keys and values of one layer in the form they are stored in.

    Attributes:
        kv_type: f16 (elements are numbers) or q8_0 (the last dimension is bytes of blocks).
        keys: [num_blocks, block_size, num_kv_heads, head_dim or its bytes].
        values: the same shape.
    """

    kv_type: KVType
    keys: npt.NDArray[np.float16] | npt.NDArray[np.uint8]
    values: npt.NDArray[np.float16] | npt.NDArray[np.uint8]

    @property
    def block_size(self) -> int:
        """Positions in one block."""
        return int(self.keys.shape[1])

    @property
    def num_kv_heads(self) -> int:
        """Heads of the keys."""
        return int(self.keys.shape[2])

    @_quietly
    def encode(self, x: FloatArray) -> npt.NDArray[np.float16] | npt.NDArray[np.uint8]:
        """f32[..., head_dim] to stored form."""
        if self.kv_type is KVType.F16:
            return x.astype(np.float16)
        return get_format("q8_0").encode(np.ascontiguousarray(x))

    def decode(self, stored: npt.NDArray[np.float16] | npt.NDArray[np.uint8]) -> DoubleArray:
        """Stored form to f64[..., head_dim]."""
        if stored.dtype == np.uint8:
            return get_format("q8_0").decode(stored.view(np.uint8)).astype(np.float64)
        return stored.astype(np.float64)


@dataclass(slots=True)
class ReferenceOps:
    """`powerinfer.ops.protocol.Ops` in numpy; see there for shapes and errors."""

    name: str = "reference"
    counters: FFNCounters = field(default_factory=FFNCounters)

    def matrix(self, tensor: Tensor, use: MatrixUse) -> ReferenceMatrix:
        """Decode a weight matrix; `use` makes no difference here."""
        if len(tensor.shape) != 2:
            raise ShapeError(f"{tensor.name} must be a matrix, its shape is {list(tensor.shape)}")
        return ReferenceMatrix(tensor.decode(), len(tensor.data))

    def vector(self, tensor: Tensor) -> FloatArray:
        """Decode a norm weight or bias to f32[n]."""
        if len(tensor.shape) != 1:
            raise ShapeError(f"{tensor.name} must be a vector, its shape is {list(tensor.shape)}")
        return tensor.decode()

    def matrix_bytes(self, matrix: ReferenceMatrix) -> int:
        """Encoded size of the whole matrix."""
        return matrix.num_bytes

    def ffn_weights(self, ffn: FFN) -> FFN:
        """Nothing to prepare; checks that skipping was asked for only where it is exact."""
        if ffn.is_exact_sparse and not ffn.activation.is_sparse:
            raise UnsupportedError(f"an FFN with {ffn.activation} has no neurons to skip")
        return ffn

    def embed(self, table: ReferenceMatrix, token_ids: IntArray) -> FloatArray:
        """Look up rows."""
        return table.values[token_ids]

    @_quietly
    def rms_norm(self, x: FloatArray, weight: FloatArray, eps: float) -> FloatArray:
        """Root mean square normalisation (arXiv 1910.07467)."""
        wide = x.astype(np.float64)
        scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + eps)
        return _narrow(wide * scale * weight)

    @_quietly
    def layer_norm(
        self, x: FloatArray, weight: FloatArray, bias: FloatArray | None, eps: float
    ) -> FloatArray:
        """Layer normalisation with population variance (arXiv 1607.06450)."""
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        normed = centred / np.sqrt(variance + eps) * weight
        return _narrow(normed if bias is None else normed + bias)

    def linear(self, x: FloatArray, layers: Sequence[Linear]) -> list[FloatArray]:
        """One product per layer."""
        return [_narrow(_product(x, layer)) for layer in layers]

    def rope_and_store(
        self,
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        cache: ReferenceKV,
        batch: Batch,
        rope: RopeTable | None,
    ) -> None:
        """Rotate q and k, then scatter k and v to (block, offset) of each token."""
        num_tokens, num_kv_heads = batch.num_tokens, cache.num_kv_heads
        head_dim = k.shape[1] // num_kv_heads
        if rope is not None:
            _rotate(q.reshape(num_tokens, -1, head_dim), batch.positions, rope)
            _rotate(k.reshape(num_tokens, -1, head_dim), batch.positions, rope)
        blocks = batch.block_tables[batch.sequences, batch.positions // cache.block_size]
        if (blocks < 0).any():
            raise PowerInferError("a token of the batch has no KV block; allocate before the step")
        offsets = batch.positions % cache.block_size
        cache.keys[blocks, offsets] = cache.encode(k.reshape(num_tokens, num_kv_heads, head_dim))
        cache.values[blocks, offsets] = cache.encode(v.reshape(num_tokens, num_kv_heads, head_dim))

    def new_kv_layer(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> ReferenceKV:
        """Allocate without touching: the pages of a block cost memory once it is written."""
        if kv_type is KVType.F16:
            shape = (num_blocks, block_size, num_kv_heads, head_dim)
            return ReferenceKV(kv_type, np.empty(shape, np.float16), np.empty(shape, np.float16))
        row_bytes = get_format("q8_0").num_bytes(head_dim)
        shape = (num_blocks, block_size, num_kv_heads, row_bytes)
        return ReferenceKV(kv_type, np.empty(shape, np.uint8), np.empty(shape, np.uint8))

    def attention(
        self,
        q: FloatArray,
        cache: ReferenceKV,
        batch: Batch,
        scale: float,
        window: int | None = None,
    ) -> FloatArray:
        """Softmax attention, one sequence after the other."""
        out = np.empty_like(q)
        for sequence in np.unique(batch.sequences):
            rows = np.flatnonzero(batch.sequences == sequence)
            positions = batch.positions[rows]
            seq_len = int(positions.max()) + 1
            num_blocks = -(-seq_len // cache.block_size)
            table = batch.block_tables[sequence, :num_blocks]
            keys = _history(cache.decode(cache.keys[table]), seq_len)
            values = _history(cache.decode(cache.values[table]), seq_len)
            out[rows] = _attend(q[rows], keys, values, _mask(positions, seq_len, window), scale)
        return out

    @_quietly
    def ffn(self, x: FloatArray, ffn: FFN) -> FloatArray:
        """Dense, or token by token over the neurons that fire."""
        intermediate_size = len(ffn.up.matrix.values)
        self.counters.total += len(x) * intermediate_size
        if ffn.is_exact_sparse:
            return self._exact_ffn(x, ffn)
        self.counters.active += len(x) * intermediate_size
        matrices = [linear.matrix for linear in (ffn.gate, ffn.up, ffn.down) if linear is not None]
        self.counters.bytes_read += sum(matrix.num_bytes for matrix in matrices)
        up = _product(x, ffn.up)
        hidden = activate(ffn.activation, None if ffn.gate is None else _product(x, ffn.gate), up)
        down = ffn.down.matrix.values.astype(np.float64)
        return _narrow(_add_bias(hidden @ (down if ffn.is_down_transposed else down.T), ffn.down))

    def _exact_ffn(self, x: FloatArray, ffn: FFN) -> FloatArray:
        """Decide densely by the gate (or by up where there is none), then touch active rows only.

        Bytes are counted once per step for a row that any token of the step used.
        """
        decider = ffn.up if ffn.gate is None else ffn.gate
        decided = _product(x, decider)
        used_by_up = np.zeros(decided.shape[1], bool)
        used_by_down = np.zeros(decided.shape[1], bool)
        out = np.empty((len(x), _hidden_size(ffn)), np.float32)
        for token, scores in enumerate(decided):
            active_ids = np.flatnonzero(_fires(ffn.activation, scores))
            if ffn.gate is None:
                hidden = activate(ffn.activation, None, scores[active_ids])
            else:
                used_by_up[active_ids] = True
                up = _product_rows(x[token], ffn.up, active_ids)
                hidden = activate(ffn.activation, scores[active_ids], up)
            # A NaN is kept: it must reach the output, where the engine looks for it.
            is_used = hidden != 0
            active_ids, hidden = active_ids[is_used], hidden[is_used]
            used_by_down[active_ids] = True
            self.counters.active += len(active_ids)
            out[token] = _narrow(_add_bias(hidden @ _down_rows(ffn, active_ids), ffn.down))
        up_rows = 0 if ffn.gate is None else int(used_by_up.sum())
        self.counters.bytes_read += decider.matrix.num_bytes + up_rows * ffn.up.matrix.row_bytes
        self.counters.bytes_read += (
            int(used_by_down.sum()) * ffn.down.matrix.row_bytes
            if ffn.is_down_transposed
            else ffn.down.matrix.num_bytes
        )
        return out

    @_quietly
    def add(self, x: FloatArray, y: FloatArray) -> None:
        """In place."""
        np.add(x, y, out=x)


@_quietly
def activate(activation: Activation, gate: DoubleArray | None, up: DoubleArray) -> DoubleArray:
    """Values that scale the rows of `down`; without a gate the function applies to `up` alone."""
    first = up if gate is None else gate
    kind = activation.kind
    if kind is ActivationKind.SILU:
        fired = first / (1.0 + np.exp(-first))
    elif kind is ActivationKind.GELU:
        # The tanh form, as GGUF models are run elsewhere (arXiv 1606.08415, section 2).
        inner = np.sqrt(2.0 / np.pi) * (first + 0.044715 * first**3)
        fired = 0.5 * first * (1.0 + np.tanh(inner))
    elif kind is ActivationKind.FATRELU:
        # Written so that NaN passes, as it does through maximum.
        fired = np.where(first < activation.threshold, 0.0, first)
    else:
        fired = np.maximum(first, 0.0)
    if kind is ActivationKind.RELU2:
        fired = fired * fired
    if gate is None:
        return fired
    return fired * (np.maximum(up, 0.0) if kind is ActivationKind.DRELU else up)


def _fires(activation: Activation, scores: DoubleArray) -> npt.NDArray[np.bool_]:
    """Whether a neuron can contribute; NaN fires, so that it is not hidden by skipping."""
    if activation.kind is ActivationKind.FATRELU:
        return ~(scores < activation.threshold)
    return ~(scores <= 0.0)


@_quietly
def _product(x: FloatArray, layer: Linear) -> DoubleArray:
    """X @ matrix.T + bias in f64."""
    weights = layer.matrix.values.astype(np.float64)
    if x.shape[1] != weights.shape[1]:
        raise ShapeError(f"input of shape {x.shape} does not fit a matrix {weights.shape}")
    return _add_bias(x.astype(np.float64) @ weights.T, layer)


@_quietly
def _product_rows(x: FloatArray, layer: Linear, ids: npt.NDArray[np.intp]) -> DoubleArray:
    """Chosen elements of the product of one token: f64[len(ids)]."""
    chosen: DoubleArray = layer.matrix.values[ids].astype(np.float64) @ x.astype(np.float64)
    return chosen if layer.bias is None else chosen + layer.bias[ids]


def _down_rows(ffn: FFN, ids: npt.NDArray[np.intp]) -> DoubleArray:
    """Rows of the transposed down projection: f64[len(ids), hidden_size]."""
    down: FloatArray = ffn.down.matrix.values
    return (down[ids] if ffn.is_down_transposed else down[:, ids].T).astype(np.float64)


def _hidden_size(ffn: FFN) -> int:
    return int(ffn.down.matrix.values.shape[1 if ffn.is_down_transposed else 0])


def _add_bias(product: DoubleArray, layer: Linear) -> DoubleArray:
    return product if layer.bias is None else product + layer.bias


@_quietly
def _narrow(x: DoubleArray) -> FloatArray:
    return x.astype(np.float32)


@_quietly
def _rotate(heads: FloatArray, positions: IntArray, rope: RopeTable) -> None:
    """Rotate pairs of f32[num_tokens, heads, head_dim] in place."""
    half = rope.rotary_dim // 2
    cos = rope.cos[positions, None, :].astype(np.float64)
    sin = rope.sin[positions, None, :].astype(np.float64)
    if rope.is_interleaved:
        left, right = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    else:
        left, right = slice(0, half), slice(half, 2 * half)
    a, b = heads[..., left].astype(np.float64), heads[..., right].astype(np.float64)
    heads[..., left] = a * cos - b * sin
    heads[..., right] = a * sin + b * cos


def _history(blocks: DoubleArray, seq_len: int) -> DoubleArray:
    """[blocks, block_size, heads, head_dim] to [heads, seq_len, head_dim]."""
    flat = blocks.reshape(-1, *blocks.shape[2:])[:seq_len]
    return flat.transpose(1, 0, 2)


def _mask(positions: IntArray, seq_len: int, window: int | None) -> npt.NDArray[np.bool_]:
    """Which positions each token may see: bool[num_tokens, seq_len]."""
    seen = np.arange(seq_len)
    distance = positions[:, None] - seen[None, :]
    allowed = distance >= 0
    return allowed if window is None else allowed & (distance < window)


@_quietly
def _attend(
    q: FloatArray,
    keys: DoubleArray,
    values: DoubleArray,
    allowed: npt.NDArray[np.bool_],
    scale: float,
) -> FloatArray:
    """Q f32[num_tokens, num_heads * head_dim]; keys, values f64[kv_heads, seq_len, head_dim]."""
    num_kv_heads, _, head_dim = keys.shape
    grouped = q.astype(np.float64).reshape(len(q), num_kv_heads, -1, head_dim)
    out = np.empty_like(grouped)
    for head in range(num_kv_heads):
        scores = np.einsum("tgd,sd->tgs", grouped[:, head], keys[head]) * scale
        scores = np.where(allowed[:, None, :], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[:, head] = np.einsum("tgs,sd->tgd", weights, values[head])
    return _narrow(out.reshape(len(q), -1))
