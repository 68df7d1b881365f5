"""Speed at which the native operators read weights: the CPU's half of the cost model."""

import mmap
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from powerinfer import _core
from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.handles import NativeFFN, NativeLinear
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.prefetch_settings import PlainReadSettings
from powerinfer.ops.protocol import FFN, ActiveIds, Linear, MatrixUse
from powerinfer.placement.cost_model import DeviceSpeed
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind, ByteArray, FloatArray, IntArray

__all__ = [
    "COLUMNS",
    "RowReader",
    "filled_linear",
    "measure_native_speed",
    "seconds_of",
    "sparse_block",
]

COLUMNS = 4096
"""Columns of the matrices of measurements."""

# Per matrix; two of them are more than the caches of any processor hold, whole or in rows.
_MATRIX_BYTES = 192 << 20
_ACTIVE_SHARE = 0.1
_REPEATS = 5
_LAUNCHES = 100
# Every format reads this byte as a moderate number, 1.06 as f16 and the scales of blocks, 0.01 as
# f32 and bf16: slow numbers (subnormal, infinite) would be another measurement.
_FILL = 0x3C


def measure_native_speed(
    ops: NativeOps, format_name: str, progress: Callable[[int, int], None] | None = None
) -> DeviceSpeed:
    """Measure with temporary matrices of one format, on the threads of `ops`.

    Takes 400 MB of memory and a second or two. Calls `progress` with (steps done, steps in all).
    """
    say = progress or (lambda done, total: None)
    total = 2 * _REPEATS + 1
    x = np.random.default_rng(0).standard_normal((1, COLUMNS)).astype(np.float32)
    up, down = (filled_linear(ops, format_name, _MATRIX_BYTES) for _ in range(2))
    num_bytes = ops.matrix_bytes(up.matrix)
    reads = []
    for number in range(_REPEATS):
        # Alternating, so that neither finds its data in a cache.
        seconds = sum(seconds_of(partial(ops.linear, x, [part])) for part in (up, down))
        reads.append(2 * num_bytes / seconds)
        say(number + 1, total)
    gathers, ffn = [], sparse_block(ops, up, down)
    num_neurons, _ = ops.matrix_shape(up.matrix)
    for number in range(_REPEATS):
        gathers.append(_gather(ops, x, ffn, num_neurons, seed=number))
        say(_REPEATS + number + 1, total)
    launch_s = _launch_s(ops, x, ffn)
    say(total, total)
    # The first round touches the pages.
    return DeviceSpeed(statistics.median(reads[1:]), statistics.median(gathers[1:]), launch_s)


def filled_linear(
    ops: NativeOps, format_name: str, num_bytes: int, *, in_place: bool = False
) -> NativeLinear:
    """Create a matrix of moderate numbers; `in_place`: in small pages, like a mapped file."""
    row_bytes = get_format(format_name).num_bytes(COLUMNS)
    rows = max(1, num_bytes // row_bytes)
    size = rows * row_bytes
    data = np.frombuffer(mmap.mmap(-1, size), np.uint8) if in_place else np.empty(size, np.uint8)
    data[:] = _FILL
    tensor = Tensor("speed", (rows, COLUMNS), format_name, data, Path())
    return Linear(ops.matrix(tensor, MatrixUse.NEURONS))


def sparse_block(ops: NativeOps, up: NativeLinear, down: NativeLinear) -> NativeFFN:
    """Combine two matrices into an ungated block whose rows are gathered."""
    return ops.ffn_weights(
        FFN(
            gate=None,
            up=up,
            down=down,
            activation=Activation(ActivationKind.RELU),
            is_down_transposed=True,
            is_exact_sparse=True,
        )
    )


def _gather(ops: NativeOps, x: FloatArray, ffn: NativeFFN, num_neurons: int, *, seed: int) -> float:
    """Measure bytes per second of the rows of randomly chosen neurons."""
    is_active = np.random.default_rng(seed).random((1, num_neurons)) < _ACTIVE_SHARE
    active = ActiveIds.of_mask(is_active)
    before = ops.counters.bytes_read
    seconds = seconds_of(lambda: ops.ffn_active(x, ffn, active))
    return (ops.counters.bytes_read - before) / seconds


def _launch_s(ops: NativeOps, x: FloatArray, ffn: NativeFFN) -> float:
    """Measure a block of which one neuron is computed: regions of the team and next to no bytes."""
    one = ActiveIds(np.array([0, 1], np.int64), np.zeros(1, np.int32))
    return statistics.median(
        seconds_of(lambda: ops.ffn_active(x, ffn, one)) for _ in range(_LAUNCHES)
    )


def seconds_of(call: Callable[[], object]) -> float:
    """Measure the seconds of a call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class RowReader:
    """Reads listed rows like the native operators, with its own team of threads."""

    def __init__(self, threads: int) -> None:
        """Start the threads, 1 to 512."""
        self._team = _core.ThreadTeam(threads)

    def read_s(self, data: ByteArray, row_bytes: int, row_ids: IntArray, ahead: int = 0) -> float:
        """Measure the seconds to read the listed rows.

        Args:
            data: u8[rows * row_bytes].
            row_bytes: bytes of a row.
            row_ids: i32[count], rows in the order of reading.
            ahead: bytes of rows to prefetch; 0: none.

        Raises:
            IndexError: an id is out of range.
        """
        started = time.perf_counter()
        _core.gather_rows(self._team, data, row_bytes, row_ids, ahead)
        return time.perf_counter() - started

    def read_all_s(self, arrays: Sequence[ByteArray], settings: PlainReadSettings) -> float:
        """Measure the seconds to read every byte of the arrays, u8[n] each, once."""
        known = list(arrays)
        started = time.perf_counter()
        _core.read_bytes(self._team, known, settings.ahead, settings.chunk_bytes, settings.streams)
        return time.perf_counter() - started
