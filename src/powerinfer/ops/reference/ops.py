"""The numpy reference: every operation written for reading, the oracle for all other backends.

Weights are decoded to f32 once. Sums are taken in f64 and rounded to f32 at the end of each
operation, so the only error left is the rounding of the inputs. Keys and values are stored as f16
or Q8_0, because that rounding is part of the result. Nothing here is meant to be fast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PowerInferError, ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.expert_tensors import check_expert_biases, check_expert_tensors
from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.protocol import (
    ActiveIds,
    FFNCounters,
    HeadNorms,
    KVType,
    LayerProgram,
    MatrixUse,
    NeuronShares,
    RopeTable,
)
from powerinfer.ops.reference.experts import (
    ChosenExperts,
    check_experts,
    choose_experts,
    router_of,
    run_experts,
)
from powerinfer.ops.reference.ffn import (
    ReferenceFFN,
    activate,
    mask_of_ids,
    neuron_values,
    run_ffn,
)
from powerinfer.ops.reference.heads import ReferenceHeads
from powerinfer.ops.reference.matrix import (
    DoubleArray,
    Mask,
    ReferenceLinear,
    ReferenceMatrix,
    narrow,
    product,
)
from powerinfer.ops.reference.mixers import ReferenceMixers, ReferenceState, rotate
from powerinfer.ops.reference.predictor import (
    ReferencePredictor,
    check_predictor,
    predicted_mask,
)
from powerinfer.quant import get_format
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray, IntArray

__all__ = ["ReferenceKV", "ReferenceMatrix", "ReferenceOps", "ReferenceState", "activate"]

# Variance of x - sign(x) E|x|, the error of binarising a normal x of variance 1.
_SIGN_NOISE = 1.0 - 2.0 / np.pi
_SMALLEST_NOISE = 1e-30


@dataclass(frozen=True, slots=True)
class ReferenceKV:
    """Keys and values of one layer in their stored form.

    Attributes:
        kv_type: f16 (elements are numbers) or q8_0 (the last dimension is bytes of blocks).
        keys: [num_blocks, block_size, num_kv_heads, head_dim or its bytes].
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

    @ignore_float_errors
    def encode(self, x: FloatArray) -> npt.NDArray[np.float16] | npt.NDArray[np.uint8]:
        """Convert f32[..., head_dim] to the stored form."""
        if self.kv_type is KVType.F16:
            return x.astype(np.float16)
        return get_format("q8_0").encode(np.ascontiguousarray(x))

    def decode(self, stored: npt.NDArray[np.float16] | npt.NDArray[np.uint8]) -> DoubleArray:
        """Convert the stored form to f64[..., head_dim]."""
        if stored.dtype == np.uint8:
            return get_format("q8_0").decode(stored.view(np.uint8)).astype(np.float64)
        return stored.astype(np.float64)


@dataclass(slots=True)
class ReferenceOps(ReferenceHeads, ReferenceMixers):
    """`powerinfer.ops.protocol.Ops` in numpy; see there for shapes and errors."""

    name: str = "reference"
    counters: FFNCounters = field(default_factory=FFNCounters)

    native_s = None
    handoff_name = None
    runs_layers_apart = True

    def matrix(self, tensor: Tensor, use: MatrixUse) -> ReferenceMatrix:
        """Decode a weight matrix; `use` makes no difference here."""
        if len(tensor.shape) != 2:
            raise ShapeError(f"{tensor.name} must be a matrix, its shape is {list(tensor.shape)}")
        return ReferenceMatrix(tensor.decode(), len(tensor.data), format_name=tensor.format)

    def expert_matrix(self, tensors: Sequence[Tensor], use: MatrixUse) -> ReferenceMatrix:
        """Decode the matrices of all experts, one after the other."""
        check_expert_tensors(tensors)
        values = [tensor.decode().reshape(-1, tensor.shape[-1]) for tensor in tensors]
        num_bytes = sum(len(tensor.data) for tensor in tensors)
        return ReferenceMatrix(np.concatenate(values), num_bytes, format_name=tensors[0].format)

    def expert_vector(self, tensor: Tensor) -> FloatArray:
        """Decode the biases of all experts."""
        check_expert_biases(tensor)
        return tensor.decode().reshape(-1)

    def constant(self, values: FloatArray) -> FloatArray:
        """Return `values`."""
        return values

    def vector_values(self, vector: FloatArray) -> FloatArray:
        """Return `vector`."""
        return vector

    def vector(self, tensor: Tensor) -> FloatArray:
        """Decode a norm weight or bias to f32[n]."""
        if len(tensor.shape) != 1:
            raise ShapeError(f"{tensor.name} must be a vector, its shape is {list(tensor.shape)}")
        return tensor.decode()

    def matrix_bytes(self, matrix: ReferenceMatrix) -> int:
        """Return the encoded size of the whole matrix."""
        return matrix.num_bytes

    def matrix_shape(self, matrix: ReferenceMatrix) -> tuple[int, int]:
        """Return rows and columns of the decoded matrix."""
        rows, columns = matrix.values.shape
        return rows, columns

    def matrix_format(self, matrix: ReferenceMatrix) -> str:
        """Return the format of the encoded matrix."""
        return matrix.format_name

    def ffn_weights(self, ffn: ReferenceFFN) -> ReferenceFFN:
        """Check that the block can be run as asked; there is nothing to prepare."""
        if ffn.is_exact_sparse and not ffn.activation.is_sparse:
            raise UnsupportedError(f"an FFN with {ffn.activation} has no neurons to skip")
        if ffn.router is not None:
            check_experts(ffn)
        return ffn

    def embed(self, table: ReferenceMatrix, token_ids: IntArray) -> FloatArray:
        """Look up rows."""
        return table.values[token_ids]

    @ignore_float_errors
    def layer_norm(
        self, x: FloatArray, weight: FloatArray, bias: FloatArray | None, eps: float
    ) -> FloatArray:
        """Layer normalisation with population variance (arXiv 1607.06450)."""
        wide = x.astype(np.float64)
        centred = wide - wide.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        normed = centred / np.sqrt(variance + eps) * weight
        return narrow(normed if bias is None else normed + bias)

    def linear(
        self,
        x: FloatArray,
        layers: Sequence[ReferenceLinear],
        is_prompt: BoolArray | None = None,
    ) -> list[FloatArray]:
        """Compute one product per layer; prompt and decode rows are multiplied alike."""
        return [narrow(product(x, layer)) for layer in layers]

    def rope_and_store(
        self,
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        cache: ReferenceKV,
        batch: Batch,
        rope: RopeTable | None,
        head_norms: HeadNorms[FloatArray] | None = None,
    ) -> None:
        """Normalise and rotate q and k, then scatter k and v to (block, offset) of each token."""
        num_tokens, num_kv_heads = batch.num_tokens, cache.num_kv_heads
        head_dim = k.shape[1] // num_kv_heads
        q_heads, k_heads = (x.reshape(num_tokens, -1, head_dim) for x in (q, k))
        # A copy: v may be k.
        values = v.reshape(num_tokens, num_kv_heads, head_dim).copy()
        if head_norms is not None:
            if head_norms.v is not None:
                values = self.rms_norm(values, head_norms.v, head_norms.eps)
            q_heads[:] = self.rms_norm(q_heads, head_norms.q, head_norms.eps)
            k_heads[:] = self.rms_norm(k_heads, head_norms.k, head_norms.eps)
        if rope is not None:
            rotate(q_heads, batch.positions, rope)
            rotate(k_heads, batch.positions, rope)
        blocks = batch.block_tables[batch.sequences, batch.positions // cache.block_size]
        if (blocks < 0).any():
            raise PowerInferError("a token of the batch has no KV block; allocate before the step")
        offsets = batch.positions % cache.block_size
        cache.keys[blocks, offsets] = cache.encode(k.reshape(num_tokens, num_kv_heads, head_dim))
        cache.values[blocks, offsets] = cache.encode(values)

    def new_kv_layers(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> list[ReferenceKV]:
        """Allocate without touching: the pages of a block take memory once it is written."""
        outer = num_blocks, block_size, num_kv_heads

        def empty() -> npt.NDArray[np.float16] | npt.NDArray[np.uint8]:
            if kv_type is KVType.F16:
                return np.empty((*outer, head_dim), np.float16)
            return np.empty((*outer, get_format("q8_0").num_bytes(head_dim)), np.uint8)

        return [ReferenceKV(kv_type, empty(), empty()) for _ in range(num_layers)]

    def copy_kv_blocks(
        self, layers: Sequence[ReferenceKV], pairs: Sequence[tuple[int, int]]
    ) -> None:
        """Copy one block after the other."""
        for layer in layers:
            for source, target in pairs:
                if min(source, target) < 0:
                    raise IndexError(f"there is no block {min(source, target)}")
                layer.keys[target] = layer.keys[source]
                layer.values[target] = layer.values[source]

    def attention(
        self,
        q: FloatArray,
        cache: ReferenceKV,
        batch: Batch,
        scale: float,
        window: int | None = None,
        *,
        sinks: FloatArray | None = None,
        soft_cap: float | None = None,
    ) -> FloatArray:
        """Compute softmax attention, one sequence after the other."""
        out = np.empty_like(q)
        softmax = _Softmax(scale, soft_cap, sinks)
        for sequence in np.unique(batch.sequences):
            rows = np.flatnonzero(batch.sequences == sequence)
            positions = batch.positions[rows]
            seq_len = int(positions.max()) + 1
            num_blocks = -(-seq_len // cache.block_size)
            table = batch.block_tables[sequence, :num_blocks]
            keys = _history(cache.decode(cache.keys[table]), seq_len)
            values = _history(cache.decode(cache.values[table]), seq_len)
            out[rows] = _attend(q[rows], keys, values, _mask(positions, seq_len, window), softmax)
        return out

    def recode(self, matrix: ReferenceMatrix, format_name: str) -> ReferenceMatrix:
        """Encode and decode again, with columns padded with zeros to whole blocks."""
        target = get_format(format_name)
        rows, columns = matrix.values.shape
        padded = np.zeros((rows, -(-columns // target.block_size) * target.block_size), np.float32)
        padded[:, :columns] = matrix.values
        encoded = target.encode(padded)
        is_binary = format_name == "sign"
        return ReferenceMatrix(target.decode(encoded), encoded.nbytes, is_binary, format_name)

    def copy_statistics(
        self,
        matrix: ReferenceMatrix,
        copy: ReferenceMatrix,
        mean: FloatArray,
        variance: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Compute offset and noise of a copy, per row."""
        wide = matrix.values.astype(np.float64)
        copied = copy.values[:, : wide.shape[1]].astype(np.float64)
        square = ((wide - copied) ** 2) @ variance.astype(np.float64)
        if copy.is_binary:
            square += (copied**2) @ variance.astype(np.float64) * _SIGN_NOISE
        noise = np.maximum(np.sqrt(square), _SMALLEST_NOISE)
        return narrow(wide @ mean.astype(np.float64)), narrow(noise)

    def neuron_predictor(self, predictor: ReferencePredictor) -> ReferencePredictor:
        """Check that the matrices fit each other; there is nothing to prepare."""
        check_predictor(predictor)
        return predictor

    def predict(
        self, x: FloatArray, predictor: ReferencePredictor, is_prompt: BoolArray | None = None
    ) -> ActiveIds:
        """List the neurons that pass every stage."""
        return ActiveIds.of_mask(predicted_mask(x, predictor))

    def route(
        self, x: FloatArray, ffn: ReferenceFFN, is_prompt: BoolArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Return ids and weights of the chosen experts."""
        chosen = choose_experts(x, router_of(ffn))
        return chosen.ids, chosen.weights

    @ignore_float_errors
    def ffn(
        self,
        x: FloatArray,
        ffn: ReferenceFFN,
        predictor_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> FloatArray:
        """Compute a block densely, over the neurons that fire, or over predicted ones of them."""
        chosen = _chosen(x if router_input is None else router_input, ffn)
        if ffn.predictor is None:
            return self._run(x, ffn, chosen, None)
        scored = x if predictor_input is None else predictor_input
        num_neurons = len(ffn.up.matrix.values)
        allowed = None if chosen is None else chosen.neurons(ffn.num_experts, num_neurons)
        mask = predicted_mask(scored, ffn.predictor, self.counters, allowed)
        return self._run(x, ffn, chosen, mask)

    def start_ffn(
        self,
        x: FloatArray,
        ffn: ReferenceFFN,
        predictor_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> Callable[[], FloatArray]:
        """Put off everything until the result is asked for."""
        return partial(self.ffn, x, ffn, predictor_input, is_prompt, router_input)

    @ignore_float_errors
    def ffn_active(
        self,
        x: FloatArray,
        ffn: ReferenceFFN,
        active: ActiveIds,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> FloatArray:
        """Compute a block over listed neurons only."""
        mask = mask_of_ids(active, len(x), len(ffn.up.matrix.values))
        return self._run(x, ffn, _chosen(x if router_input is None else router_input, ffn), mask)

    @ignore_float_errors
    def ffn_firing(
        self,
        x: FloatArray,
        ffn: ReferenceFFN,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> tuple[FloatArray, ByteArray]:
        """Compute the block, then its neurons once more."""
        chosen = _chosen(x if router_input is None else router_input, ffn)
        fired = neuron_values(x, ffn) != 0
        if chosen is not None:
            fired &= chosen.neurons(ffn.num_experts, fired.shape[1])
        return self._run(x, ffn, chosen, None), np.packbits(fired, axis=1, bitorder="little")

    def neuron_shares(self, ffn: ReferenceFFN) -> NeuronShares | None:
        """Not counted."""
        return None

    def _run(
        self, x: FloatArray, ffn: ReferenceFFN, chosen: ChosenExperts | None, mask: Mask | None
    ) -> FloatArray:
        if chosen is None:
            return run_ffn(x, ffn, mask, self.counters)
        return run_experts(x, ffn, chosen, mask, self.counters)

    @ignore_float_errors
    def add(self, x: FloatArray, y: FloatArray) -> None:
        """Add y to x in place."""
        np.add(x, y, out=x)

    def take_rows(self, x: FloatArray, rows: IntArray) -> FloatArray:
        """Copy rows."""
        return np.ascontiguousarray(x[rows])

    def to_host(self, x: FloatArray) -> FloatArray:
        """Return `x`."""
        return x

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[FloatArray]) -> FloatArray:
        """Run all layers, then the end."""
        return program.end(program.layers(x, batch, 0, program.num_layers))


def _chosen(x: FloatArray, ffn: ReferenceFFN) -> ChosenExperts | None:
    """Choose the experts of each token; None for a block without a router."""
    return None if ffn.router is None else choose_experts(x, ffn.router)


def _history(blocks: DoubleArray, seq_len: int) -> DoubleArray:
    """Reorder [blocks, block_size, heads, head_dim] to [heads, seq_len, head_dim]."""
    flat = blocks.reshape(-1, *blocks.shape[2:])[:seq_len]
    return flat.transpose(1, 0, 2)


def _mask(positions: IntArray, seq_len: int, window: int | None) -> npt.NDArray[np.bool_]:
    """Return the positions that each token may see: bool[num_tokens, seq_len]."""
    key_positions = np.arange(seq_len)
    distance = positions[:, None] - key_positions[None, :]
    allowed = distance >= 0
    return allowed if window is None else allowed & (distance < window)


@dataclass(frozen=True, slots=True)
class _Softmax:
    """Function from scores to weights; see `powerinfer.ops.protocol.Ops.attention`."""

    scale: float
    soft_cap: float | None
    sinks: FloatArray | None

    def weights(
        self, products: DoubleArray, allowed: npt.NDArray[np.bool_], heads: slice
    ) -> DoubleArray:
        """Weight f64[num_tokens, len(heads), seq_len]; with a sink, to a sum of less than one."""
        scores = products * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * np.tanh(scores / self.soft_cap)
        scores = np.where(allowed[:, None, :], scores, -np.inf)
        if self.sinks is not None:
            sinks = self.sinks[heads].astype(np.float64)
            columns = np.broadcast_to(sinks[None, :, None], (*scores.shape[:2], 1))
            scores = np.concatenate([scores, columns], axis=-1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        seen: DoubleArray = weights[..., : products.shape[-1]]
        return seen


@ignore_float_errors
def _attend(
    q: FloatArray,
    keys: DoubleArray,
    values: DoubleArray,
    allowed: npt.NDArray[np.bool_],
    softmax: _Softmax,
) -> FloatArray:
    """Q f32[num_tokens, num_heads * head_dim]; keys, values f64[kv_heads, seq_len, head_dim]."""
    num_kv_heads, _, head_dim = keys.shape
    grouped = q.astype(np.float64).reshape(len(q), num_kv_heads, -1, head_dim)
    out = np.empty_like(grouped)
    group = grouped.shape[2]
    for head in range(num_kv_heads):
        products = np.einsum("tgd,sd->tgs", grouped[:, head], keys[head])
        heads = slice(head * group, (head + 1) * group)
        weights = softmax.weights(products, allowed, heads)
        out[:, head] = np.einsum("tgs,sd->tgd", weights, values[head])
    return narrow(out.reshape(len(q), -1))
