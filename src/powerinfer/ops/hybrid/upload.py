"""Uploads of a placed model: from handles of the CPU backend to handles of the GPU."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.ops.cpu.handles import (
    NativeFFN,
    NativeLinear,
    NativeMatrix,
    NativePredictor,
    NativeVector,
)
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.ffn import HotNeurons
from powerinfer.ops.gpu.formats import ALIGNMENT, device_bytes, transposed_format
from powerinfer.ops.gpu.linear import write_columns
from powerinfer.ops.gpu.matrix import (
    DeviceMatrix,
    can_join,
    empty_matrix,
    joined_format,
    rows_of,
    write_rows,
)
from powerinfer.ops.gpu.memory import Arena
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.selection import DevicePredictor, DeviceRouter
from powerinfer.ops.gpu.uploads import Chunk, Staging
from powerinfer.ops.hybrid.decode import HandedFFN, SplitFFN
from powerinfer.ops.hybrid.handles import (
    Fused,
    FusedPart,
    HybridLinear,
    OnDevice,
    SlotTable,
    UploadedLinear,
)
from powerinfer.ops.protocol import Linear, NeuronPredictor, ScoreStage
from powerinfer.quant import get_format
from powerinfer.values import ByteArray, IntArray

__all__ = ["Placer", "Uploads"]

# Bytes of rows that are gathered in host memory at a time: a matrix of a chunk of a prompt.
_PIECE_BYTES = 16 << 20


class Uploads:
    """Copies weights of one CPU backend into memory of one GPU.

    Its methods raise OutOfDeviceMemoryError if the device has no room, and NumericsError if a
    weight exceeds f16, the format that the device would keep it in.
    """

    def __init__(self, cpu: NativeOps, gpu: TorchGPU) -> None:
        self.cpu, self.gpu = cpu, gpu
        self._local = threading.local()

    def chunks(self, matrix: NativeMatrix, buffer_bytes: int) -> list[Chunk[DeviceMatrix]]:
        """Divide the rows of a matrix for buffers of this size."""
        name, (rows, columns) = self.cpu.matrix_format(matrix), self.cpu.matrix_shape(matrix)
        most = max(1, (buffer_bytes - 2 * ALIGNMENT) // device_bytes(name, 1, columns))

        def chunk(ids: IntArray) -> Chunk[DeviceMatrix]:
            slots = np.arange(len(ids), dtype=np.int32)
            return Chunk(
                lambda arena: empty_matrix(name, len(ids), columns, arena),
                lambda target: self.rows(matrix, ids, target, slots),
            )

        return list(map(chunk, np.array_split(np.arange(rows, dtype=np.int32), -(-rows // most))))

    def rows(
        self, matrix: NativeMatrix, ids: IntArray, target: DeviceMatrix, slots: IntArray
    ) -> None:
        """Copy rows i32[n] of a matrix to rows i32[n] of one of the same format on the device."""
        # All of it lies in one arena. Closing a model does not wait for background work.
        self.gpu.keep_for_stream(target.values)
        for piece, encoded in self._encoded(matrix, ids):
            write_rows(target, slots[piece], encoded, is_staged=True)

    def neurons(self, ffn: NativeFFN, hot: HotNeurons, ids: IntArray, slots: IntArray) -> None:
        """Write neurons into free slots, without entering them into the tables.

        Args:
            ids: i32[n], neurons; ascending unless down is transposed.
            slots: i32[n], a slot for each; the first n unless down is transposed.
        """
        if not len(ids):
            return
        for part, target, bias in (
            (ffn.gate, hot.gate, hot.gate_bias),
            (ffn.up, hot.up, hot.up_bias),
        ):
            if part is None or target is None:
                continue
            self.rows(part.matrix, ids, target, slots)
            if part.bias is not None and bias is not None:
                values = self.cpu.vector_values(part.bias)[ids]
                where = self.gpu.to_device(slots.astype(np.int64))
                bias.index_copy_(0, where, self.gpu.to_device(values))
        if ffn.is_down_transposed:
            self.rows(ffn.down.matrix, ids, hot.down, slots)
        else:
            self._columns(ffn, ids, hot.down)

    def _columns(self, ffn: NativeFFN, ids: IntArray, target: DeviceMatrix) -> None:
        """Copy columns of down, expert by expert, to the first rows of another matrix."""
        matrix = ffn.down.matrix
        rows, size = self.cpu.matrix_shape(matrix)
        hidden_size = rows // ffn.num_experts
        experts = ids // size
        ends = [*(np.flatnonzero(np.diff(experts)) + 1).tolist(), len(ids)]
        first = 0
        for end in ends:
            expert = int(experts[first])
            where = rows_of(target, first, end, target.format_name)
            own = np.arange(hidden_size, dtype=np.int32) + expert * hidden_size
            self._turned(matrix, own, ids[first:end] - expert * size, where)
            first = end

    def _turned(
        self, matrix: NativeMatrix, rows: IntArray, ids: IntArray, target: DeviceMatrix
    ) -> None:
        """Copy columns of some rows of a matrix to rows of another."""
        name = self.cpu.matrix_format(matrix)
        form = get_format(name)
        # Only the blocks of consecutive neurons are sent.
        first, end = int(ids.min()) // form.block_size, int(ids.max()) // form.block_size + 1
        blocks = slice(first * form.block_bytes, end * form.block_bytes)
        num_columns, chosen = (end - first) * form.block_size, ids - first * form.block_size
        for piece, encoded in self._encoded(matrix, rows):
            write_columns(target, chosen, encoded[:, blocks], name, num_columns, piece.start)

    def _encoded(self, matrix: NativeMatrix, ids: IntArray) -> Iterator[tuple[slice, ByteArray]]:
        """Yield pieces of rows in page-locked memory, each to be sent before the next."""
        name, (_, columns) = self.cpu.matrix_format(matrix), self.cpu.matrix_shape(matrix)
        row_bytes = get_format(name).num_bytes(columns)
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        staging: Staging | None = getattr(self._local, "staging", None)
        if staging is None:
            # Each thread has its own.
            staging = self._local.staging = Staging(self.gpu, _PIECE_BYTES)
        for first in range(0, len(ids), step):
            some = ids[first : first + step]
            room = staging.room(len(some), row_bytes)
            yield slice(first, first + step), self.cpu.encoded_rows(matrix, some, room)
            staging.mark_sent()


class Placer:
    """Cuts the arrays of a model out of an arena and copies its weights into them.

    With an arena that only counts, nothing is copied. Its methods raise the errors of `Uploads`.

    Attributes:
        arena: memory of the arrays, zeroed.
    """

    def __init__(self, uploads: Uploads, arena: Arena) -> None:
        self.arena = arena
        self._cpu, self._gpu, self._uploads = uploads.cpu, uploads.gpu, uploads

    def vector(self, vector: NativeVector) -> OnDevice[Tensor, NativeVector]:
        """Place a norm weight or bias."""
        return OnDevice(self.array(self._cpu.vector_values(vector)), vector)

    def linear(self, layer: NativeLinear) -> UploadedLinear:
        """Place a matrix with its bias."""
        matrix = OnDevice(self.matrix(layer.matrix), layer.matrix)
        return Linear(matrix, None if layer.bias is None else self.vector(layer.bias))

    def joined(self, layers: Sequence[NativeLinear]) -> tuple[HybridLinear, ...]:
        """Place the products of one input, joined if their matrices allow it."""
        forms = [self._form(layer.matrix) for layer in layers]
        if not can_join([(name, columns) for name, _, columns in forms]):
            return tuple(self.linear(layer) for layer in layers)
        try:
            fused = self._fused(layers)
        except NumericsError:
            return tuple(self._apart(layer) for layer in layers)
        return tuple(
            Linear(FusedPart(fused, number, layer.matrix), layer.bias)
            for number, layer in enumerate(layers)
        )

    def matrix(self, matrix: NativeMatrix) -> DeviceMatrix:
        """Place all rows of a matrix."""
        name, rows, columns = self._form(matrix)
        target = empty_matrix(name, rows, columns, self.arena)
        try:
            self._all_rows(matrix, target)
        except NumericsError:
            return self._wide(matrix)
        return target

    def array(self, values: npt.NDArray[np.generic]) -> Tensor:
        """Place a copy of any array."""
        dtype = torch.from_numpy(np.empty(0, values.dtype)).dtype
        target = self.arena.array(values.shape, dtype)
        if not self.arena.is_counting:
            self._gpu.write(target, values)
        return target

    def block(self, ffn: NativeFFN, table: SlotTable, *, is_scored: bool) -> SplitFFN:
        """Place the hot neurons and the predictor of a block.

        With `is_scored` the device keeps a score of each neuron, by which they move.
        """
        hot = self.empty_neurons(ffn, len(table.neuron_of_slot))
        hot = replace(
            hot,
            neuron_of_slot=self.array(table.neuron_of_slot),
            slot_of_neuron=self.array(table.slot_of_neuron),
            down_bias=self._numbers(ffn.down.bias) if ffn.router is None else None,
        )
        if not self.arena.is_counting:
            self._uploads.neurons(ffn, hot, table.hot, table.slot_of_neuron[table.hot])
        scores = np.zeros(len(table.slot_of_neuron), np.float32)
        return SplitFFN(
            cpu=ffn,
            hot=hot,
            predictor=None if ffn.predictor is None else self._predictor(ffn.predictor),
            slots=table,
            scores=self.array(scores) if is_scored else None,
            router=self._router(ffn),
        )

    def handed_block(self, ffn: NativeFFN) -> HandedFFN:
        """Place the device's part of a block that the CPU computes, including its predictor."""
        # The CPU, which chooses the experts, adds their biases.
        return HandedFFN(ffn, self._numbers(ffn.down.bias) if ffn.router is None else None)

    def empty_neurons(self, ffn: NativeFFN, num_slots: int) -> HotNeurons:
        """Allocate slots for neurons of a block, without tables and the bias of down."""
        hidden_size = self._cpu.matrix_shape(ffn.up.matrix)[1]

        def rows_for(part: NativeLinear) -> DeviceMatrix:
            name = self._cpu.matrix_format(part.matrix)
            return empty_matrix(name, num_slots, hidden_size, self.arena)

        down = self._cpu.matrix_format(ffn.down.matrix)
        down = down if ffn.is_down_transposed else transposed_format(down)
        nothing = self.arena.array((0,), torch.int32)
        return HotNeurons(
            gate=None if ffn.gate is None else rows_for(ffn.gate),
            up=rows_for(ffn.up),
            down=empty_matrix(down, num_slots, hidden_size, self.arena),
            neuron_of_slot=nothing,
            slot_of_neuron=nothing,
            activation=ffn.activation,
            is_exact_sparse=ffn.is_exact_sparse,
            gate_bias=self._slot_bias(ffn.gate, num_slots),
            up_bias=self._slot_bias(ffn.up, num_slots),
        )

    def _router(self, ffn: NativeFFN) -> DeviceRouter | None:
        router = ffn.router
        if router is None:
            return None
        bias = self._numbers(router.linear.bias)
        down_bias = self._numbers(ffn.down.bias)
        return DeviceRouter(
            linear=Linear(self.matrix(router.linear.matrix), bias),
            num_experts=router.num_experts,
            num_used=router.num_used,
            rule=router.rule,
            is_normalized=router.is_normalized,
            scale=router.scale,
            down_bias=None if down_bias is None else down_bias.view(router.num_experts, -1),
        )

    def _predictor(self, predictor: NativePredictor) -> DevicePredictor:
        stages = [
            ScoreStage(self.matrix(stage.matrix), self._numbers(stage.bias), stage.threshold)
            for stage in predictor.stages
        ]
        fc1 = None if predictor.fc1 is None else self.matrix(predictor.fc1)
        return NeuronPredictor(fc1, self._numbers(predictor.center), tuple(stages))

    def _wide(self, matrix: NativeMatrix) -> DeviceMatrix:
        """Place a matrix with numbers beyond f16, in a format without a packed form, as f32.

        It gets separate memory, since the need shows only when its numbers are decoded.
        """
        name, _, columns = self._form(matrix)
        return self._gpu.upload_matrix(self._cpu.encoded_rows(matrix), name, columns)

    def _apart(self, layer: NativeLinear) -> UploadedLinear:
        """Place a product that could not be joined because one of the matrices is kept in f32."""
        bias = layer.bias
        on_device = None
        if bias is not None:
            on_device = OnDevice(self._gpu.to_device(self._cpu.vector_values(bias)), bias)
        return Linear(OnDevice(self._wide(layer.matrix), layer.matrix), on_device)

    def _fused(self, layers: Sequence[NativeLinear]) -> Fused:
        """Place the rows of all matrices in one, without separate copies."""
        forms = [self._form(layer.matrix) for layer in layers]
        sizes = [rows for _, rows, _ in forms]
        name, _, columns = forms[0]
        whole = empty_matrix(joined_format(name), sum(sizes), columns, self.arena)
        firsts = np.cumsum([0, *sizes]).tolist()
        for layer, (part_name, rows, _), first in zip(layers, forms, firsts[:-1], strict=True):
            self._all_rows(layer.matrix, rows_of(whole, first, first + rows, part_name))
        return Fused(Linear(whole, self._fused_bias(layers, sizes)), tuple(sizes))

    def _fused_bias(self, layers: Sequence[NativeLinear], sizes: Sequence[int]) -> Tensor | None:
        if all(layer.bias is None for layer in layers):
            return None
        parts = [
            np.zeros(size, np.float32)
            if layer.bias is None
            else self._cpu.vector_values(layer.bias)
            for layer, size in zip(layers, sizes, strict=True)
        ]
        return self.array(np.concatenate(parts))

    def _all_rows(self, matrix: NativeMatrix, target: DeviceMatrix) -> None:
        self._gpu.has_packed |= bool(target.bits)
        if not self.arena.is_counting:
            every = np.arange(target.rows, dtype=np.int32)
            self._uploads.rows(matrix, every, target, every)

    def _form(self, matrix: NativeMatrix) -> tuple[str, int, int]:
        """Return format, rows and columns."""
        return self._cpu.matrix_format(matrix), *self._cpu.matrix_shape(matrix)

    def _slot_bias(self, part: NativeLinear | None, num_slots: int) -> Tensor | None:
        if part is None or part.bias is None:
            return None
        return self.arena.array((num_slots,), torch.float32)

    def _numbers(self, vector: NativeVector | None) -> Tensor | None:
        return None if vector is None else self.vector(vector).device
