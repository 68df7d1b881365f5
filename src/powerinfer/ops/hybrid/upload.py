"""From handles of the CPU backend to handles of the GPU: what placing a model uploads."""

from collections.abc import Iterator, Sequence

import numpy as np
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
from powerinfer.ops.gpu.ffn import DevicePredictor, DeviceStage, HotNeurons
from powerinfer.ops.gpu.formats import device_bytes, transposed_format
from powerinfer.ops.gpu.matrix import DeviceMatrix, empty_matrix, write_columns, write_rows
from powerinfer.ops.gpu.memory import naming_exhaustion
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.uploads import Staging
from powerinfer.ops.hybrid.handles import (
    Fused,
    FusedPart,
    HybridLinear,
    OnDevice,
    UploadedLinear,
    device_linear,
)
from powerinfer.ops.hybrid.migration import SlotTable
from powerinfer.ops.protocol import Linear
from powerinfer.quant import get_format
from powerinfer.values import ByteArray, IntArray

__all__ = ["Uploads"]

# Rows are gathered in host memory so many bytes at a time.
_PIECE_BYTES = 8 << 20


class Uploads:
    """Copies weights of one CPU backend to one GPU.

    Its methods raise OutOfDeviceMemoryError where the device has no room, and NumericsError where
    a weight is too large for the f16 that it would be kept in.
    """

    def __init__(self, cpu: NativeOps, gpu: TorchGPU) -> None:
        """Take both ends."""
        self._cpu = cpu
        self._gpu = gpu
        self._staging = Staging(gpu, _PIECE_BYTES)

    def vector(self, vector: NativeVector) -> OnDevice[Tensor, NativeVector]:
        """A norm weight or bias."""
        return OnDevice(self._gpu.upload_vector(self._cpu.vector_values(vector)), vector)

    def linear(self, layer: NativeLinear) -> UploadedLinear:
        """A matrix with its bias."""
        matrix = OnDevice(self.matrix(layer.matrix), layer.matrix)
        return Linear(matrix, None if layer.bias is None else self.vector(layer.bias))

    def joined(self, layers: Sequence[NativeLinear]) -> tuple[HybridLinear, ...]:
        """Products of one input, as one where their matrices allow that."""
        parts = [self.linear(layer) for layer in layers]
        joined = self._gpu.fuse([device_linear(part) for part in parts])
        if joined is None:
            return tuple(parts)
        fused = Fused(joined[0], tuple(joined[1]))
        return tuple(
            Linear(FusedPart(fused, number, layer.matrix), layer.bias)
            for number, layer in enumerate(layers)
        )

    def matrix(self, matrix: NativeMatrix) -> DeviceMatrix:
        """All rows of a matrix."""
        rows, columns = self._cpu.matrix_shape(matrix)
        every = np.arange(rows, dtype=np.int32)
        target = self._empty(self._cpu.matrix_format(matrix), rows, columns)
        try:
            self.rows(matrix, every, target, every)
        except NumericsError:
            # Numbers beyond f16 in a format without a packed form: such a matrix is kept in f32.
            encoded = self._cpu.encoded_rows(matrix)
            return self._gpu.upload_matrix(encoded, self._cpu.matrix_format(matrix), columns)
        return target

    def rows(
        self, matrix: NativeMatrix, ids: IntArray, target: DeviceMatrix, slots: IntArray
    ) -> None:
        """Some rows of a matrix into rows of another on the device.

        Args:
            matrix: of the CPU backend.
            ids: i32[n], which.
            target: of the same format and as many columns.
            slots: i32[n], where to.
        """
        for piece, encoded in self._encoded(matrix, ids):
            write_rows(target, slots[piece], encoded, is_staged=True)

    def predictor(self, predictor: NativePredictor) -> DevicePredictor:
        """All matrices of a predictor."""
        stages = [
            DeviceStage(self.matrix(stage.matrix), self._numbers(stage.bias), stage.threshold)
            for stage in predictor.stages
        ]
        fc1 = None if predictor.fc1 is None else self.matrix(predictor.fc1)
        return DevicePredictor(fc1, self._numbers(predictor.center), tuple(stages))

    def hot_neurons(self, ffn: NativeFFN, table: SlotTable, counters: Tensor | None) -> HotNeurons:
        """The neurons that a table names, each in its slot.

        Args:
            ffn: the block in host memory.
            table: which neurons go where.
            counters: i64[3] on the device, see `HotNeurons`.
        """
        num_slots, hidden_size = len(table.neuron_of_slot), self._cpu.matrix_shape(ffn.up.matrix)[1]

        def rows_for(part: NativeLinear) -> DeviceMatrix:
            return self._empty(self._cpu.matrix_format(part.matrix), num_slots, hidden_size)

        hot = HotNeurons(
            gate=None if ffn.gate is None else rows_for(ffn.gate),
            up=rows_for(ffn.up),
            down=self._empty(self._down_format(ffn), num_slots, hidden_size),
            neuron_of_slot=self._gpu.to_device(table.neuron_of_slot),
            slot_of_neuron=self._gpu.to_device(table.slot_of_neuron),
            activation=ffn.activation,
            is_exact_sparse=ffn.is_exact_sparse,
            gate_bias=self._slot_bias(ffn.gate, num_slots),
            up_bias=self._slot_bias(ffn.up, num_slots),
            down_bias=self._numbers(ffn.down.bias),
            counters=counters,
        )
        self.neurons(ffn, hot, table.hot, table.slot_of_neuron[table.hot])
        return hot

    def neurons(self, ffn: NativeFFN, hot: HotNeurons, ids: IntArray, slots: IntArray) -> None:
        """Write neurons into free slots, without naming them in the tables.

        Args:
            ffn: the block in host memory.
            hot: where to.
            ids: i32[n], neurons; ascending where down is not transposed.
            slots: i32[n], one each; the first n where down is not transposed.
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
                values = self._cpu.vector_values(part.bias)[ids]
                where = self._gpu.to_device(slots.astype(np.int64))
                bias.index_copy_(0, where, self._gpu.to_device(values))
        if ffn.is_down_transposed:
            self.rows(ffn.down.matrix, ids, hot.down, slots)
        else:
            self._columns(ffn.down.matrix, ids, hot.down)

    def _columns(self, matrix: NativeMatrix, ids: IntArray, target: DeviceMatrix) -> None:
        """Columns of a matrix into the first rows of another."""
        name, rows = self._cpu.matrix_format(matrix), self._cpu.matrix_shape(matrix)[0]
        form = get_format(name)
        # Of neurons that follow each other only their blocks are sent.
        first, end = int(ids.min()) // form.block_size, int(ids.max()) // form.block_size + 1
        blocks = slice(first * form.block_bytes, end * form.block_bytes)
        num_columns, chosen = (end - first) * form.block_size, ids - first * form.block_size
        for piece, encoded in self._encoded(matrix, np.arange(rows, dtype=np.int32)):
            write_columns(target, chosen, encoded[:, blocks], name, num_columns, piece.start)

    def _encoded(self, matrix: NativeMatrix, ids: IntArray) -> Iterator[tuple[slice, ByteArray]]:
        """Rows in page-locked memory, some at a time, to be sent before the next are asked for."""
        name, (_, columns) = self._cpu.matrix_format(matrix), self._cpu.matrix_shape(matrix)
        row_bytes = get_format(name).num_bytes(columns)
        step = max(1, _PIECE_BYTES // max(1, row_bytes))
        for first in range(0, len(ids), step):
            some = ids[first : first + step]
            room = self._staging.room(len(some), row_bytes)
            yield slice(first, first + step), self._cpu.encoded_rows(matrix, some, room)
            self._staging.mark_sent()

    def _down_format(self, ffn: NativeFFN) -> str:
        """Format of down on the device, where a plain one is turned."""
        name = self._cpu.matrix_format(ffn.down.matrix)
        return name if ffn.is_down_transposed else transposed_format(name)

    def _empty(self, format_name: str, rows: int, columns: int) -> DeviceMatrix:
        num_bytes = device_bytes(format_name, rows, columns)
        with naming_exhaustion(f"{rows} rows of {format_name}", num_bytes):
            return empty_matrix(format_name, rows, columns, self._gpu.device)

    def _slot_bias(self, part: NativeLinear | None, num_slots: int) -> Tensor | None:
        if part is None or part.bias is None:
            return None
        return self._gpu.to_device(np.zeros(num_slots, np.float32))

    def _numbers(self, vector: NativeVector | None) -> Tensor | None:
        return None if vector is None else self.vector(vector).device
