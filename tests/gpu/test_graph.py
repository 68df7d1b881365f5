"""Steps handed from the device to the CPU's real half: recorded and replayed on a GPU."""

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from powerinfer.errors import DeviceError, UnsupportedError
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.kernels.handover import add_to, copy_to_host
from powerinfer.ops.gpu.ops import TorchGPU
from powerinfer.ops.gpu.recorder import CudaRecorder
from powerinfer.ops.hybrid.build import SharedBuffers, make_step_graphs
from powerinfer.ops.hybrid.handoff import EagerHandoff, MemoryOperationHandoff, load_driver
from powerinfer.ops.hybrid.speed import measure_gpu_speed, measure_handoff
from powerinfer.ops.hybrid.step_graphs import StepGraphs
from powerinfer.values import Batch, FloatArray
from split_ffn import HIDDEN, MAX_TOKENS, NEURONS, NUM_LAYERS, SplitLayers

HAS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if HAS_CUDA else "cpu"
LAYERS = (0, 2, 1)
needs_cuda = pytest.mark.skipif(not HAS_CUDA, reason="needs CUDA")


class Key:
    """Stands in for a KV cache."""


@dataclass
class Recorded:
    """A run of layers as a graph, with what was used to record it."""

    recorder: CudaRecorder
    recording: Any
    x: Any
    handoff: Any


class Bench:
    """A device, blocks whose neurons are all cold, and steps over them."""

    def __init__(self, *, watchdog_s: float = 20.0) -> None:
        self.gpu = TorchGPU(DEVICE)
        self.buffers = SharedBuffers.allocate(
            self.gpu,
            max_tokens=MAX_TOKENS,
            hidden_size=HIDDEN,
            num_neurons=NEURONS,
            num_layers=NUM_LAYERS,
        )
        self.layers = SplitLayers(buffers=self.buffers.exchange, watchdog_s=watchdog_s)
        self.key = Key()

    def graphs(self, handoff: str) -> StepGraphs:
        return make_step_graphs(self.gpu, self.layers.exchange, handoff=handoff)

    def queue(self, x: Any, batch: Any, handoff: Any) -> Any:
        """Add every layer's answer to x in place."""
        h = self.gpu.to_device(x) if isinstance(x, np.ndarray) else x
        for layer in LAYERS:
            n = len(h)
            copy_to_host(h, self.buffers.x[:n])
            self.buffers.cold[:n].copy_(h[:, :2].contiguous().view(torch.int32), non_blocking=True)
            handoff.signal(layer, n)
            handoff.wait(layer, n)
            add_to(h, self.buffers.y[:n])
        return h

    def check(self, graphs: StepGraphs, seed: int, num_tokens: int) -> None:
        """One step against the same on the CPU, to the bit."""
        x = given(seed, num_tokens)
        expected = self.layers.expected(x, LAYERS)
        with graphs.working():
            result = graphs.run(x, batch_of(num_tokens), self.queue, self.key, layers=LAYERS)
        np.testing.assert_array_equal(result, expected, err_msg=f"step {seed}")


def given(seed: int, num_tokens: int) -> FloatArray:
    return np.random.default_rng(seed).standard_normal((num_tokens, HIDDEN)).astype(np.float32)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What our own code warned about."""
    return [
        record.message
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name.startswith("powerinfer")
    ]


def batch_of(num_tokens: int) -> Batch:
    zeros = np.zeros(num_tokens, np.int32)
    return Batch(zeros, zeros, zeros, np.zeros((1, 1), np.int32))


class TestEagerSteps:
    def test_eager_steps_equal_the_cpu(self) -> None:
        bench = Bench()
        graphs = bench.graphs("eager")
        for seed in range(4):
            bench.check(graphs, seed, 1 + seed % MAX_TOKENS)
        assert graphs.num_records == 0

    def test_there_is_no_other_handoff(self) -> None:
        with pytest.raises(UnsupportedError, match="auto, eager"):
            Bench().graphs("telepathy")

    def test_speeds_are_numbers(self) -> None:
        calls: list[tuple[int, int]] = []
        found = measure_gpu_speed(DEVICE, NativeOps(2), "q4_0", lambda *step: calls.append(step))
        gpu = found.gpu
        speeds = [gpu.read_bytes_per_s, gpu.gather_bytes_per_s, gpu.launch_s]
        speeds += [found.handoff_s, found.transfer_bytes_per_s, found.run_s]
        assert len(speeds) == 6
        assert all(np.isfinite(speed) and speed > 0 for speed in speeds), found
        assert calls == [(step, 6) for step in range(7)]
        if HAS_CUDA:
            print(f"speeds with q4_0: {found}")


@needs_cuda
class TestRecordedSteps:
    def test_a_hundred_replays(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        graphs = bench.graphs("auto")
        for seed in range(104):
            for num_tokens in (1, MAX_TOKENS):
                bench.check(graphs, seed, num_tokens)
        assert graphs.num_records == 2
        assert graphs.handoff.name == "memory_operations"
        assert not warnings_in(caplog)
        graphs.forget()
        assert graphs.num_records == 0

    def test_a_hand_off_is_timed(self) -> None:
        found = measure_handoff(TorchGPU(DEVICE), NativeOps(2))
        assert found is not None
        assert 0 < found.median_s <= found.p99_s
        print(f"hand-off: median {found.median_s * 1e6:.1f} us, p99 {found.p99_s * 1e6:.1f} us")

    def test_steps_go_on_after_all_records_were_dropped(self) -> None:
        bench = Bench()
        graphs = bench.graphs("auto")
        for _ in range(3):
            for seed in range(5):
                bench.check(graphs, seed, 1)
            assert graphs.num_records == 1
            graphs.forget()

    def test_what_cannot_be_recorded_runs_eagerly(self, caplog: pytest.LogCaptureFixture) -> None:
        bench = Bench()
        graphs = bench.graphs("auto")

        def queue(x: Any, batch: Any, handoff: Any) -> Any:
            torch.cuda.current_stream().synchronize()
            return bench.queue(x, batch, handoff)

        for seed in range(8):
            x = given(seed, 1)
            expected = bench.layers.expected(x, LAYERS)
            with graphs.working():
                result = graphs.run(x, batch_of(1), queue, bench.key, layers=LAYERS)
            np.testing.assert_array_equal(result, expected)
        assert warnings_in(caplog)
        assert graphs.choice.is_exhausted


@needs_cuda
class TestHandoffs:
    def _record(self, bench: Bench, handoff: Any) -> Recorded:
        recorder = CudaRecorder(bench.gpu)
        x = torch.zeros((1, HIDDEN), device=DEVICE)
        with recorder.working():
            # Compiles the kernels.
            bench.queue(x, None, EagerHandoff(bench.layers.exchange, is_cuda=True))
            recorder.synchronize()
            recording = recorder.record(lambda: bench.queue(x, None, handoff), (1, HIDDEN))
        return Recorded(recorder, recording, x, handoff)

    def _replay(self, bench: Bench, made: Recorded, seed: int) -> None:
        recorder, recording, x = made.recorder, made.recording, made.x
        numbers = given(seed, 1)
        expected = bench.layers.expected(numbers, LAYERS)
        with recorder.working():
            x.copy_(torch.from_numpy(numbers))
            recorder.synchronize()
            made.handoff.begin_step(1, LAYERS)
            recording.replay()
            recorder.synchronize()
            made.handoff.end_step()
        np.testing.assert_array_equal(recording.result(), expected)

    def _memory(self, bench: Bench) -> MemoryOperationHandoff:
        return MemoryOperationHandoff(bench.layers.exchange, load_driver())

    def test_a_lost_signal_ends_in_an_error_and_the_next_step_is_good(self) -> None:
        bench = Bench(watchdog_s=0.5)
        made = self._record(bench, self._memory(bench))
        self._replay(bench, made, 0)
        started = time.monotonic()
        with made.recorder.working(), pytest.raises(DeviceError):
            # The CPU expects another layer first than the one the device signals.
            made.handoff.begin_step(1, (2, 0, 1))
            made.recording.replay()
            made.recorder.synchronize()
            made.handoff.end_step()
        assert time.monotonic() - started < 20.0
        for seed in range(3):
            self._replay(bench, made, seed)

    def test_a_step_never_replayed_leaves_the_next_one_good(self) -> None:
        bench = Bench()
        made = self._record(bench, self._memory(bench))
        made.handoff.begin_step(1, LAYERS)
        made.handoff.abort_step()
        self._replay(bench, made, 0)
