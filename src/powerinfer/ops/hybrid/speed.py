"""Measures a GPU for the cost model: reading and receiving weights, and handing over to the CPU.

Kernels are timed as they run in a recorded step: one after the other, without Python in between.
The cost model adds launches to the time of reading, so speeds of reading exclude them: two sizes
are timed, and the difference in bytes is divided by the difference in time.
"""

import logging
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.speed import COLUMNS, filled_linear, seconds_of, sparse_block
from powerinfer.ops.gpu.ffn import HotNeurons, hot_ffn
from powerinfer.ops.gpu.kernels.handover import add_to, copy_to_host
from powerinfer.ops.gpu.kernels.listing import write_cold
from powerinfer.ops.gpu.linear import DeviceLinear
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.recorder import Activations, CudaRecorder
from powerinfer.ops.hybrid.build import SharedBuffers, memory_handoff
from powerinfer.ops.hybrid.handoff import (
    FAILURES,
    EagerHandoff,
    Handoff,
    cause_of,
    is_exhaustion,
)
from powerinfer.ops.protocol import Linear
from powerinfer.placement.cost_model import DeviceSpeed, GPUSpeed
from powerinfer.quant import get_format
from powerinfer.values import Activation, ActivationKind, Batch

__all__ = ["HandoffFigures", "measure_gpu_speed", "measure_handoff"]

_log = logging.getLogger(__name__)

# As in `ops/cpu/speed.py`: a moderate number in every format.
_FILL = 0x3C
_ACTIVE_SHARE = 0.1
_RELU = Activation(ActivationKind.RELU)
# Rows and columns of a matrix whose reading takes no time.
_SMALL = 32
# Rounds of kernels on large matrices in one record, and replays of a record.
_ROUNDS, _REPEATS = 4, 7
# Hand-offs in one record, and replays: enough for a 99th percentile.
_NUM_HANDOFFS = 32
_NUM_REPLAYS = 24


@dataclass(frozen=True, slots=True)
class HandoffFigures:
    """Median and 99th percentile of a hand-off to the CPU and back, with nothing to compute there.

    It includes the kernels that write the input and the cold bits and add the result.
    """

    median_s: float
    p99_s: float


def measure_gpu_speed(
    device: str,
    ops: NativeOps,
    format_name: str,
    progress: Callable[[int, int], None] | None = None,
) -> GPUSpeed:
    """Measure with temporary matrices of one format; takes a second or two.

    On torch's cpu device, where kernels are interpreted, the matrices are tiny and the figures
    meaningless.

    Layers are handed to `ops`; `progress` is called with (steps done, steps in all).

    Raises:
        DeviceError: there is no such device, or it failed.
    """
    say = progress or (lambda done, total: None)
    say(0, 6)  # the first figure takes long where kernels are compiled
    gpu = TorchGPU(device)
    bench = _Bench(gpu, CudaRecorder(gpu)) if gpu.is_cuda else _Bench(gpu, None, 256, 1 << 14, 1)
    with bench.working():
        large, small = (
            [_matrix(bench, format_name, num_bytes) for _ in range(2)]
            for num_bytes in (bench.matrix_bytes, bench.matrix_bytes // 2)
        )
        read = _bytes_per_s(_read(bench, large), _read(bench, small))
        say(1, 6)
        gather = _bytes_per_s(_gather(bench, large), _gather(bench, small))
        say(2, 6)
        del large, small
        launch = _launch_s(bench, format_name)
        say(3, 6)
        transfer = _transfer(bench)
        say(4, 6)
        run = _run_s(bench)
        say(5, 6)
    handoff = _handoff_s(gpu, ops)
    say(6, 6)
    return GPUSpeed(DeviceSpeed(read, gather, launch), handoff, transfer, run)


# Bytes and the seconds that they took.
_Timed: TypeAlias = tuple[int, float]


def _bytes_per_s(large: _Timed, small: _Timed) -> float:
    """Divide the differences of two sizes, since both have the same launches.

    If the larger one was not slower (an interpreter's times are noise), use its figures alone.
    """
    num_bytes, seconds = large[0] - small[0], large[1] - small[1]
    return num_bytes / seconds if seconds > 0 else large[0] / large[1]


@dataclass(frozen=True, slots=True)
class _Bench:
    """Times work, recorded if the device can.

    Attributes:
        columns: columns of the matrices.
        matrix_bytes: bytes of a matrix; two of half the size must exceed the device's cache.
        parts: parts of layers, made of small kernels, in one record.
    """

    gpu: TorchGPU
    recorder: CudaRecorder | None
    columns: int = COLUMNS
    matrix_bytes: int = 192 << 20
    parts: int = 32

    def working(self) -> AbstractContextManager[None]:
        return torch.no_grad() if self.recorder is None else self.recorder.working()

    def seconds(self, work: Callable[[], object]) -> float:
        """Measure the median time of work on the device."""
        if self.recorder is None:
            return seconds_of(work)
        work()
        self.gpu.synchronize()
        recording = self.recorder.record(lambda: _nothing(work()))
        try:
            return self.queued_s(recording.replay)
        finally:
            recording.drop()

    def queued_s(self, queue: Callable[[], object]) -> float:
        """Measure the median time of work that is only queued."""
        if self.recorder is None:
            return seconds_of(queue)
        return statistics.median(self._sample(queue) for _ in range(_NUM_HANDOFFS))

    def _sample(self, queue: Callable[[], object]) -> float:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Keeps the device busy while the timed work is being queued.
        queue()
        first.record()
        queue()
        last.record()
        self.gpu.synchronize()
        return float(first.elapsed_time(last)) * 1e-3


def _nothing(result: object) -> None:
    """Replace the result of a record that needs none."""


def _matrix(bench: _Bench, format_name: str, num_bytes: int) -> DeviceMatrix:
    columns = bench.columns
    row_bytes = get_format(format_name).num_bytes(columns)
    rows = max(_SMALL, num_bytes // row_bytes)
    encoded = np.full((rows, row_bytes), _FILL, np.uint8)
    return bench.gpu.upload_matrix(encoded, format_name, columns)


def _input(bench: _Bench) -> torch.Tensor:
    return bench.gpu.to_device(np.ones((1, bench.columns), np.float32))


def _read(bench: _Bench, parts: list[DeviceMatrix]) -> _Timed:
    """Measure products with alternating matrices, so that none is in a cache."""
    x = _input(bench)
    layers: list[DeviceLinear] = [Linear(part) for part in parts * _ROUNDS]
    num_bytes: int = sum(layer.matrix.nbytes for layer in layers)
    seconds = bench.seconds(lambda: [bench.gpu.linear(x, [layer]) for layer in layers])
    return num_bytes, seconds


def _gather(bench: _Bench, parts: list[DeviceMatrix]) -> _Timed:
    """Measure an ungated block over random neurons."""
    gpu, (up, down) = bench.gpu, parts
    ids = gpu.to_device(np.arange(up.rows, dtype=np.int32))
    hot = HotNeurons(None, up, down, neuron_of_slot=ids, slot_of_neuron=ids, activation=_RELU)
    random = np.random.default_rng(0)
    masks = (random.random((_ROUNDS, 1, up.rows)) < _ACTIVE_SHARE).astype(np.uint8)
    num_bytes = int(masks.sum()) * (up.row_bytes + down.row_bytes)
    placed = [gpu.to_device(mask) for mask in masks]
    x = _input(bench)
    if float(gpu.linear(x, [Linear(up)])[0][0, 0]) < 0:
        # All rows are alike: with this input every neuron that passes also fires.
        x = -x
    seconds = bench.seconds(lambda: [hot_ffn(x, hot, mask) for mask in placed])
    return num_bytes, seconds


def _launch_s(bench: _Bench, format_name: str) -> float:
    gpu, x, num_parts = bench.gpu, _input(bench), bench.parts
    small: DeviceLinear = Linear(_matrix(bench, format_name, 0))
    weight = gpu.to_device(np.ones(bench.columns, np.float32))

    def parts(number: int) -> None:
        for _ in range(number):
            gpu.add(x, gpu.rms_norm(x, weight, 1e-5))
            gpu.linear(x, [small] * 3)

    once, twice = (bench.seconds(partial(parts, n)) for n in (num_parts, 2 * num_parts))
    # The launch of the graph is the same in both.
    return (twice - once if twice > once else twice / 2) / num_parts


def _transfer(bench: _Bench) -> float:
    num_bytes = bench.matrix_bytes // 3
    source = bench.gpu.pinned((num_bytes,), torch.uint8).zero_()
    target = torch.empty(num_bytes, dtype=torch.uint8, device=bench.gpu.device)
    return num_bytes / bench.queued_s(lambda: target.copy_(source, non_blocking=True))


def _run_s(bench: _Bench) -> float:
    """Measure a step without work, from its input on the host to its result there."""
    gpu, recorder = bench.gpu, bench.recorder
    x = np.ones((1, bench.columns), np.float32)
    if recorder is None:
        return seconds_of(lambda: gpu.to_host(gpu.to_device(x)))
    zeros = np.zeros(1, np.int32)
    batch = Batch(zeros, zeros, zeros, np.zeros((1, 1), np.int32))
    inputs = recorder.inputs(x, batch)

    def work() -> Activations:
        inputs.send()
        gpu.add(inputs.x, inputs.x)
        return inputs.x

    recording = recorder.record(work, x.shape)

    def step() -> None:
        inputs.fill(batch, x)
        recording.replay()
        recorder.synchronize()
        recording.result()

    try:
        step()
        return statistics.median(seconds_of(step) for _ in range(bench.parts))
    finally:
        recording.drop()


def _handoff_s(gpu: TorchGPU, ops: NativeOps) -> float:
    """Return the median of a hand-off that can be recorded, else of the eager one."""
    found = measure_handoff(gpu, ops)
    if found is not None:
        return found.median_s
    exchange, shared = _small_exchange(gpu, ops)
    handoff = EagerHandoff(exchange, is_cuda=gpu.is_cuda)
    hand_over = partial(_hand_over, handoff, shared, *_given(gpu, shared))
    return statistics.median(seconds_of(hand_over) for _ in range(_NUM_HANDOFFS))


def measure_handoff(gpu: TorchGPU, ops: NativeOps) -> HandoffFigures | None:
    """Time hand-offs within a record; None if none can be recorded."""
    if not gpu.is_cuda:
        return None
    (exchange, shared), recorder = _small_exchange(gpu, ops), CudaRecorder(gpu)
    try:
        handoff = memory_handoff(recorder, exchange, gpu.device.index)
        with recorder.working():
            return _time_handoff(recorder, handoff, shared, *_given(gpu, shared))
    except FAILURES as error:
        if is_exhaustion(error):
            raise OutOfDeviceMemoryError("the device has no room to time hand-offs") from error
        _log.warning("hand-offs cannot be recorded: %s", str(cause_of(error)))
        return None


def _given(gpu: TorchGPU, shared: SharedBuffers) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input of a block, and slots of its neurons, all of which are on the device."""
    slots = np.zeros(32 * shared.cold.shape[1], np.int32)
    return gpu.to_device(np.zeros(shared.x.shape, np.float32)), gpu.to_device(slots)


def _hand_over(
    handoff: Handoff, shared: SharedBuffers, x: torch.Tensor, slots: torch.Tensor
) -> None:
    """Queue what a block does to have its cold neurons computed, see `decode.DecodeFFN`."""
    copy_to_host(x, shared.x)
    write_cold(None, slots, shared.cold)
    handoff.signal(0, 1)
    handoff.wait(0, 1)
    add_to(x, shared.y)


def _time_handoff(
    recorder: CudaRecorder,
    handoff: Handoff,
    shared: SharedBuffers,
    x: torch.Tensor,
    slots: torch.Tensor,
) -> HandoffFigures:
    marks = [_mark() for _ in range(_NUM_HANDOFFS + 1)]
    # Compiles and loads the kernels.
    copy_to_host(x, shared.x)
    write_cold(None, slots, shared.cold)
    add_to(x, shared.y)

    def queue() -> None:
        marks[0].record()
        for mark in marks[1:]:
            _hand_over(handoff, shared, x, slots)
            mark.record()

    recording = recorder.record(queue)
    samples: list[float] = []
    try:
        for replay in range(_NUM_REPLAYS):
            handoff.begin_step(1, [0] * _NUM_HANDOFFS)
            try:
                recording.replay()
            finally:
                recorder.synchronize()
                handoff.end_step()
            if replay:  # the first one sends the graph to the device
                samples += (1e-3 * one.elapsed_time(after) for one, after in pairwise(marks))
    finally:
        recording.drop()
    return HandoffFigures(float(np.median(samples)), float(np.quantile(samples, 0.99)))


def _mark() -> torch.cuda.Event:
    """Create an event that can be timed inside a record."""
    try:
        return torch.cuda.Event(enable_timing=True, external=True)
    except TypeError:
        raise DeviceError(
            f"torch {torch.__version__} times nothing inside records; install torch 2.9 or newer"
        ) from None


def _small_exchange(gpu: TorchGPU, ops: NativeOps) -> tuple[NativeExchange, SharedBuffers]:
    """Create an exchange of one layer, as wide as those of large models, with few neurons."""
    num_neurons = _SMALL * _SMALL
    buffers = SharedBuffers.allocate(
        gpu, max_tokens=1, hidden_size=COLUMNS, num_neurons=num_neurons, num_layers=1
    )
    linear = filled_linear(ops, "f32", 4 * num_neurons * COLUMNS)
    exchange = ops.exchange(buffers.exchange)
    exchange.add_layer(sparse_block(ops, linear, linear))
    return exchange, buffers
