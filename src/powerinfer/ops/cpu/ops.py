"""The native CPU backend: `powerinfer.ops.protocol.Ops` on the C++ extension.

Weights stay in the mapped file. Matrices in `REPACKED_FORMATS`, and on request all others, are
copied into anonymous memory, and the pages of the file they came from are given back. A decode step
spends its time in the calls below, so they do as little as they can in Python.
"""

from collections.abc import Collection, Hashable, Sequence
from functools import partial

import numpy as np

from powerinfer import _core
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.exchange import (
    WATCHDOG_S,
    ExchangeBuffers,
    NativeExchange,
    add_stats,
    encoded_format,
    encoded_rows,
)
from powerinfer.ops.cpu.handles import (
    CurrentBatch,
    NativeFFN,
    NativeLinear,
    NativePredictor,
    RopeHandles,
    decode_shares,
    native_ffn,
    new_batch,
)
from powerinfer.ops.cpu.machine import start_team
from powerinfer.ops.cpu.mapped_pages import copy_to_huge_pages, release_pages
from powerinfer.ops.cpu.read_way import ReadWay
from powerinfer.ops.cpu.step_records import MAX_RECORDED_TOKENS, StepRecord, StepRecords
from powerinfer.ops.expert_tensors import as_rows, check_expert_biases, check_expert_tensors
from powerinfer.ops.host_arrays import HostArrays
from powerinfer.ops.protocol import (
    FFN,
    ActiveIds,
    FFNCounters,
    HeadNorms,
    KVType,
    LayerProgram,
    MatrixUse,
    NeuronPredictor,
    NeuronShares,
    RopeTable,
)
from powerinfer.values import Batch, BoolArray, ByteArray, FloatArray, IntArray

__all__ = ["NativeOps"]

FORMATS = (
    "f32",
    "f16",
    "bf16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q4_k",
    "q5_k",
    "q6_k",
    "mxfp4",
)
REPACKED_FORMATS = frozenset({"q4_0", "q4_k", "q5_k", "q6_k"})
"""Formats of which a faster layout is made at load (cpp/quant/superblock.h)."""

# Weights per superblock of that layout.
_SUPERBLOCK = 256


class NativeOps(HostArrays[NativeFFN]):
    """`powerinfer.ops.protocol.Ops` on a team of threads; see there for shapes.

    Errors beyond the protocol's: TypeError for arrays of another dtype or not C-contiguous,
    IndexError for token ids, positions or KV blocks out of range. Instances may be used from
    several Python threads; calls of one instance run one after the other.
    """

    name = "cpu"

    def __init__(
        self,
        threads: int,
        kernels: str | None = None,
        *,
        repack: bool = True,
        in_place: bool = True,
    ) -> None:
        """Start the threads.

        Args:
            threads: members of the team, 1 to 512, the caller included.
            kernels: name from `machine_info().available_kernels`; None takes the best of them.
                Other instances have kernels of their own.
            repack: copy matrices in `REPACKED_FORMATS` into the faster layout; rows stay rows.
            in_place: use other matrices where the file is mapped; else copy them into huge pages.

        Raises:
            DeviceError: this machine or build has no such kernels, or the number of threads is
                out of range.
        """
        team = start_team(threads, kernels)
        _core.keep_freed_memory()
        self.counters = FFNCounters()
        self._team = team
        self._arena = _core.Arena()
        self._repack = repack
        self._in_place = in_place
        self._current = CurrentBatch()
        self._ropes = RopeHandles()
        self._records = StepRecords()

    @property
    def threads(self) -> int:
        """Members of the team."""
        return self._team.num_threads

    @property
    def native_s(self) -> float:
        """Seconds spent in native code so far; the rest of a step is Python's share."""
        return self._team.busy_s

    @property
    def kernels(self) -> str:
        """Name of the team's kernel table."""
        return self._team.kernels

    def read_way(self, kind: str) -> ReadWay:
        """How kernels of a kind (`READ_KINDS`) read weights."""
        return ReadWay(*_core.read_way(self._team, kind))

    def set_read_way(self, kind: str, way: ReadWay) -> None:
        """Let kernels of a kind read weights in another way: from now on, in this instance alone.

        No result changes.
        """
        values = (way.ahead, way.chunk_bytes, way.gather_ahead, way.add_ahead)
        _core.set_read_way(self._team, kind, values)

    def pin(self, cpus: Collection[int]) -> bool:
        """Let the team run on these CPUs only, by the system's numbers, until `unpin`.

        The thread that calls operations runs where it did; threads that wait for another device
        follow if they start later.

        Returns:
            Whether it does; False where the system has no such CPU or cannot pin (macOS): the team
            then runs anywhere.
        """
        return self._team.pin(sorted(cpus))

    def unpin(self) -> None:
        """Let the team run where it could before `pin`."""
        self._team.unpin()

    def matrix(self, tensor: Tensor, use: MatrixUse) -> _core.Matrix:
        """View a weight matrix in the mapped file, or copy it."""
        if len(tensor.shape) != 2:
            raise ShapeError(f"{tensor.name} must be a matrix, its shape is {list(tensor.shape)}")
        matrix, is_packed = _viewed(tensor), self._is_packed(tensor)
        if use is MatrixUse.EMBEDDING or (self._in_place and not is_packed):
            return matrix
        if is_packed:
            matrix = _core.repack(self._team, matrix, self._arena)
        else:
            copy = copy_to_huge_pages(tensor.data)
            matrix = _core.Matrix(copy, tensor.format, matrix.rows, matrix.columns)
        release_pages(tensor.data)
        return matrix

    def vector(self, tensor: Tensor) -> _core.Vector:
        """Decode a norm weight or bias to f32[n]."""
        if len(tensor.shape) != 1:
            raise ShapeError(f"{tensor.name} must be a vector, its shape is {list(tensor.shape)}")
        return _core.Vector(np.ascontiguousarray(tensor.decode()))

    def expert_matrix(self, tensors: Sequence[Tensor], use: MatrixUse) -> _core.Matrix:
        """The matrices of all experts; what has to be copied is copied once it is chosen."""
        check_expert_tensors(tensors)
        first, is_packed = tensors[0], self._is_packed(tensors[0])
        if len(tensors) == 1 and not is_packed:
            return self.matrix(as_rows(first), use)
        pieces = [_viewed(as_rows(tensor)) for tensor in tensors]
        return _core.expert_matrix(pieces, first.shape[-2], self._arena, is_packed)

    def expert_vector(self, tensor: Tensor) -> _core.Vector:
        """Decode the biases of all experts."""
        check_expert_biases(tensor)
        return self.constant(tensor.decode().reshape(-1))

    def constant(self, values: FloatArray) -> _core.Vector:
        """Hold f32[n]."""
        return _core.Vector(np.ascontiguousarray(values, np.float32))

    def vector_values(self, vector: _core.Vector) -> FloatArray:
        """The numbers of a vector."""
        return vector.values

    def matrix_bytes(self, matrix: _core.Matrix) -> int:
        """Bytes of the whole matrix in the layout it has here."""
        return matrix.nbytes

    def matrix_shape(self, matrix: _core.Matrix) -> tuple[int, int]:
        """Rows and columns."""
        return matrix.rows, matrix.columns

    def matrix_format(self, matrix: _core.Matrix) -> str:
        """Name of the format of `encoded_rows`: that of the tensor, or of `recode`."""
        return encoded_format(matrix)

    def encoded_rows(
        self, matrix: _core.Matrix, ids: IntArray | None = None, out: ByteArray | None = None
    ) -> ByteArray:
        """Rows as `matrix_format` encodes them, whatever their layout here: u8[n, row_bytes].

        Args:
            matrix: made by `matrix` or `recode`.
            ids: i32[n], which rows in which order; None for all.
            out: u8[n, row_bytes], where to; None for a new array.

        Raises:
            IndexError: there is no such row.
        """
        return encoded_rows(self._team, matrix, ids, out)

    def exchange(self, buffers: ExchangeBuffers, watchdog_s: float = WATCHDOG_S) -> NativeExchange:
        """The CPU half of FFN layers that lie on two devices, on this backend's threads.

        Args:
            buffers: memory shared with the other device.
            watchdog_s: seconds after which a step in which no signal comes is given up.

        Raises:
            ShapeError: the buffers do not fit each other.
        """
        return NativeExchange(self._team, buffers, watchdog_s)

    def ffn_weights(
        self, ffn: FFN[_core.Matrix, _core.Vector, object, _core.NeuronPredictor]
    ) -> NativeFFN:
        """Bundle the weights into one handle."""
        if ffn.is_exact_sparse and not ffn.activation.is_sparse:
            raise UnsupportedError(f"an FFN with {ffn.activation} has no neurons to skip")
        return ffn.prepared(native_ffn(ffn))

    def recode(self, matrix: _core.Matrix, format_name: str) -> _core.Matrix:
        """Encode a copy into memory of our own."""
        return _core.recode(self._team, matrix, format_name, self._arena)

    def copy_statistics(
        self, matrix: _core.Matrix, copy: _core.Matrix, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Offset and noise per row."""
        offset, noise = np.empty((2, matrix.rows), np.float32)
        _core.copy_statistics(self._team, matrix, copy, mean, variance, offset, noise)
        return offset, noise

    def neuron_predictor(
        self, predictor: NeuronPredictor[_core.Matrix, _core.Vector, object]
    ) -> NativePredictor:
        """Bundle the matrices into one handle."""
        stages = [(stage.matrix, stage.bias, stage.threshold) for stage in predictor.stages]
        native = _core.NeuronPredictor(
            predictor.fc1, predictor.center, stages, predictor.num_experts
        )
        return predictor.prepared(native)

    def predict(
        self, x: FloatArray, predictor: NativePredictor, is_prompt: BoolArray | None = None
    ) -> ActiveIds:
        """Neurons that pass every stage."""
        return ActiveIds(*_core.predict(self._team, x, predictor.native, is_prompt))

    def embed(self, table: _core.Matrix, token_ids: IntArray) -> FloatArray:
        """Decode rows."""
        out = np.empty((len(token_ids), table.columns), np.float32)
        _core.embed(self._team, table, token_ids, out)
        return out

    def rms_norm(self, x: FloatArray, weight: _core.Vector, eps: float) -> FloatArray:
        """Root mean square normalisation (arXiv 1910.07467)."""
        out = np.empty(x.shape, np.float32)
        _core.rms_norm(self._team, x, weight, eps, out)
        return out

    def layer_norm(
        self, x: FloatArray, weight: _core.Vector, bias: _core.Vector | None, eps: float
    ) -> FloatArray:
        """Layer normalisation with population variance (arXiv 1607.06450)."""
        out = np.empty(x.shape, np.float32)
        _core.layer_norm(self._team, x, weight, bias, eps, out)
        return out

    def linear(
        self, x: FloatArray, layers: Sequence[NativeLinear], is_prompt: BoolArray | None = None
    ) -> list[FloatArray]:
        """Products of one input with several matrices, in one call."""
        matrices = [layer.matrix for layer in layers]
        num_tokens = len(x)
        outs = [np.empty((num_tokens, matrix.rows), np.float32) for matrix in matrices]
        biases = [layer.bias for layer in layers]
        _core.linear(self._team, x, matrices, biases, outs, is_prompt)
        return outs

    def rope_and_store(
        self,
        q: FloatArray,
        k: FloatArray,
        v: FloatArray,
        cache: _core.KVLayer,
        batch: Batch,
        rope: RopeTable | None,
        head_norms: HeadNorms[_core.Vector] | None = None,
    ) -> None:
        """Normalise and rotate q and k in place and write k and v."""
        table = None if rope is None else self._ropes.handle(rope)
        norms = None if head_norms is None else (head_norms.q, head_norms.k, head_norms.eps)
        _core.rope_and_store(self._team, q, k, v, cache, self._batch(batch), table, norms)

    def new_kv_layers(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> list[_core.KVLayer]:
        """See `new_kv_layer`."""
        sizes = num_blocks, block_size, num_kv_heads, head_dim
        return [self.new_kv_layer(*sizes, kv_type) for _ in range(num_layers)]

    def new_kv_layer(
        self,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        kv_type: KVType,
    ) -> _core.KVLayer:
        """Reserve addresses; a block takes memory once it is written."""
        if kv_type is KVType.Q8_0 and head_dim % 32 != 0:
            raise ShapeError(f"a q8_0 KV cache needs heads of a multiple of 32, got {head_dim}")
        return _core.KVLayer(num_blocks, block_size, num_kv_heads, head_dim, kv_type.value)

    def copy_kv_blocks(
        self, layers: Sequence[_core.KVLayer], pairs: Sequence[tuple[int, int]]
    ) -> None:
        """In place, so that records keep their addresses."""
        for layer in layers:
            for source, target in pairs:
                layer.copy_block(source, target)

    def attention(
        self,
        q: FloatArray,
        cache: _core.KVLayer,
        batch: Batch,
        scale: float,
        window: int | None = None,
        *,
        sinks: _core.Vector | None = None,
        soft_cap: float | None = None,
    ) -> FloatArray:
        """Softmax over the cache, in fixed chunks of positions."""
        out = np.empty(q.shape, np.float32)
        tokens, reach, cap = self._batch(batch), window or 0, soft_cap or 0.0
        _core.attention(self._team, q, cache, tokens, scale, reach, out, sinks, cap)
        return out

    def route(
        self, x: FloatArray, ffn: NativeFFN, is_prompt: BoolArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Ids and weights of the chosen experts."""
        if ffn.router is None:
            raise UnsupportedError("an FFN without a router has no experts to choose")
        shape = len(x), ffn.router.num_used
        ids, weights = np.empty(shape, np.int32), np.empty(shape, np.float32)
        _core.route(self._team, ffn.native, x, ids, weights, is_prompt)
        return ids, weights

    def ffn(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        predictor_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> FloatArray:
        """One feed-forward block in one call, its predictor included."""
        out = np.empty(x.shape, np.float32)
        if ffn.predictor is None:
            stats = _core.ffn(
                self._team, x, ffn.native, out, is_prompt=is_prompt, router_input=router_input
            )
        else:
            scored = x if predictor_input is None else predictor_input
            predictor = ffn.predictor.native
            stats = _core.ffn(
                self._team, x, ffn.native, out, predictor, scored, is_prompt, router_input
            )
        add_stats(self.counters, stats)
        return out

    def ffn_active(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        active: ActiveIds,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> FloatArray:
        """Over listed neurons only."""
        out = np.empty(x.shape, np.float32)
        offsets, ids = active.offsets, active.ids
        stats = _core.ffn_active(
            self._team, x, ffn.native, offsets, ids, out, is_prompt, router_input
        )
        add_stats(self.counters, stats)
        return out

    def ffn_firing(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        is_prompt: BoolArray | None = None,
        router_input: FloatArray | None = None,
    ) -> tuple[FloatArray, ByteArray]:
        """One call, which notes on its way what fires; of prompt rows only."""
        if len(x) and (is_prompt is None or not is_prompt.all()):
            raise UnsupportedError("which neurons fire is known of prompts, not of decode rows")
        out = np.empty(x.shape, np.float32)
        fired = np.empty((len(x), -(-ffn.up.matrix.rows // 8)), np.uint8)
        stats = _core.ffn_firing(self._team, x, ffn.native, out, fired, router_input)
        add_stats(self.counters, stats)
        return out, fired

    def weighted_ffn(
        self,
        x: FloatArray,
        ffn: NativeFFN,
        active: ActiveIds,
        weights: FloatArray,
        is_prompt: BoolArray | None = None,
    ) -> FloatArray:
        """Over listed neurons of experts that another device chose; without the biases of down.

        Args:
            x: f32[num_tokens, hidden_size].
            ffn: with a router, which is not asked.
            active: the neurons of each token, those of other experts than its own are ignored.
            weights: f32[num_tokens, num_experts], 0 for experts that a token does not use.
            is_prompt: see `powerinfer.ops.protocol.Computes`.
        """
        out = np.empty(x.shape, np.float32)
        lists = active.offsets, active.ids
        add_stats(
            self.counters,
            _core.ffn_weighted(self._team, x, ffn.native, *lists, weights, out, is_prompt),
        )
        return out

    def neuron_shares(self, ffn: NativeFFN) -> NeuronShares | None:
        """Of the block's last decode step."""
        return decode_shares(ffn)

    def add(self, x: FloatArray, y: FloatArray) -> None:
        """In place."""
        _core.add(self._team, x, y)

    def take_rows(self, x: FloatArray, rows: IntArray) -> FloatArray:
        """Copy rows."""
        out = np.empty((len(rows), x.shape[1]), np.float32)
        _core.take_rows(self._team, x, rows, out)
        return out

    def to_host(self, x: FloatArray) -> FloatArray:
        """As it is; a step whose numbers Python looks at is not one that C++ can run alone."""
        self._team.spoil_record()
        return x

    def step(self, x: FloatArray, batch: Batch, program: LayerProgram[FloatArray]) -> FloatArray:
        """Run it; few generated tokens in one call, once such a step has been recorded."""
        if program.key is None or batch.num_tokens > MAX_RECORDED_TOKENS:
            return super().step(x, batch, program)
        record = self._records.find(program.key, batch.num_tokens)
        if record is None:
            return self._record(x, batch, program, program.key)
        if not record.is_complete:
            return super().step(x, batch, program)
        add_stats(self.counters, record.run(self._team, x, self._batch(batch)))
        return record.result()

    def _record(
        self, x: FloatArray, batch: Batch, program: LayerProgram[FloatArray], key: Hashable
    ) -> FloatArray:
        """Run a step and record it."""
        own = new_batch(batch)
        # The calls below are to use the batch that later runs put their tokens in, no others are.
        self._current = CurrentBatch(batch, own)
        try:
            record = StepRecord.of(self._team, x, own, partial(super().step, x, batch, program))
        finally:
            self._current = CurrentBatch()
        self._records.keep(key, batch.num_tokens, record)
        return record.result()

    def _is_packed(self, tensor: Tensor) -> bool:
        is_packable = tensor.format in REPACKED_FORMATS and tensor.shape[-1] % _SUPERBLOCK == 0
        return self._repack and is_packable

    def _batch(self, batch: Batch) -> _core.Batch:
        current = self._current
        if current.batch is batch and current.handle is not None:
            return current.handle
        handle = new_batch(batch)
        self._current = CurrentBatch(batch, handle)
        return handle


def _viewed(tensor: Tensor) -> _core.Matrix:
    """A weight matrix where it lies.

    Raises:
        UnsupportedError: its format has no kernels.
    """
    if tensor.format not in FORMATS:
        raise UnsupportedError(
            f"tensor {tensor.name} has the type {tensor.format}, for which there are no "
            f"kernels. Supported: {', '.join(FORMATS)}."
        )
    rows, columns = tensor.shape
    return _core.Matrix(tensor.data, tensor.format, rows, columns)
