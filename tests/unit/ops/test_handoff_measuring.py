"""Trying and timing the hand-off, and which pool of memory a recording uses."""

import gc
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from fake_stream import (  # noqa: E402
    FakeDriver,
    FakeEvent,
    FakeRecorder,
    FakeStream,
    Machine,
    running_machine,
)
from powerinfer.errors import DeviceError  # noqa: E402
from powerinfer.ops.gpu.recorder import CudaRecorder, waiting_event  # noqa: E402
from powerinfer.ops.hybrid import build  # noqa: E402
from powerinfer.ops.hybrid.build import HANDOFFS, make_step_graphs  # noqa: E402
from powerinfer.ops.operands import FFNCounters  # noqa: E402
from powerinfer.values import Batch  # noqa: E402
from split_ffn import HIDDEN, SplitLayers  # noqa: E402


class TimedEvent(FakeEvent):
    """An event that records when the stream reached it."""

    seconds = 0.0

    def record(self, stream: FakeStream | None = None) -> None:
        def note() -> None:
            self.seconds = time.perf_counter()

        (stream or self._machine.main).queue(note)
        super().record(stream)

    def elapsed_time(self, other: "TimedEvent") -> float:
        return 1e3 * (other.seconds - self.seconds)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with running_machine(monkeypatch, TimedEvent) as made:
        monkeypatch.setattr(build, "load_driver", lambda: FakeDriver(made))
        monkeypatch.setattr(build, "CudaRecorder", lambda gpu: FakeRecorder(made))
        yield made


GPU: Any = SimpleNamespace(device=torch.device("cuda:0"), is_cuda=True, to_device=torch.from_numpy)


@pytest.mark.parametrize("handoff", HANDOFFS)
def test_what_was_asked_for_is_used(handoff: str, machine: Machine) -> None:
    layers = SplitLayers()
    graphs = make_step_graphs(GPU, layers.exchange, handoff=handoff)
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((2, HIDDEN)).astype(np.float32)
        expected = layers.expected(x, (0, 1))

        def queue(x: Any, batch: Any, handoff: Any) -> Any:
            return layers.run(x, (0, 1), handoff, machine.queue)

        zeros = np.zeros(2, np.int32)
        batch = Batch(zeros, zeros, zeros, np.zeros((1, 1), np.int32))
        result = graphs.run(x, batch, queue, "key", layers=(0, 1))
        np.testing.assert_array_equal(result, expected)
    is_recorded = handoff == "auto"
    assert graphs.num_records == is_recorded
    assert graphs.handoff.name == ("memory_operations" if is_recorded else "eager")


def _refuse(self: FakeDriver, device_index: int) -> None:
    raise DeviceError("no memory operations here")


def test_a_device_without_memory_operations_runs_eagerly(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeDriver, "require_memory_operations", _refuse)
    graphs = make_step_graphs(GPU, SplitLayers().exchange)
    assert graphs.choice.best(hands_over=True) is None
    assert graphs.choice.is_exhausted
    assert "no memory operations here" in caplog.text


def test_a_device_that_passes_waits_by_runs_eagerly(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    machine.is_broken = True
    graphs = make_step_graphs(GPU, SplitLayers().exchange)
    assert graphs.choice.best(hands_over=True) is None
    assert "did not wait for the CPU" in caplog.text


def test_without_cuda_functions_nothing_that_hands_over_is_recorded(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    graphs = make_step_graphs(GPU, SplitLayers().exchange)
    assert graphs.choice.best(hands_over=False) is not None
    assert graphs.choice.best(hands_over=True) is None
    assert graphs.choice.is_exhausted


@pytest.mark.parametrize("works", [True, False])
def test_the_gpus_hand_off_is_measured_if_it_has_one(
    works: bool,
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from powerinfer.ops.cpu.ops import NativeOps
    from powerinfer.ops.hybrid import speed

    layers = SplitLayers()
    layers.cold.fill(0)
    num_kernels = 0

    def count(*_: Any) -> None:
        nonlocal num_kernels
        num_kernels += 1

    for kernel in ("copy_to_host", "write_cold", "add_to"):
        monkeypatch.setattr(speed, kernel, lambda *_: machine.queue(count))
    monkeypatch.setattr(speed, "_small_exchange", lambda *_: (layers.exchange, layers))
    recorder = FakeRecorder(machine)
    monkeypatch.setattr(speed, "CudaRecorder", lambda gpu: recorder)
    if not works:
        monkeypatch.setattr(FakeDriver, "require_memory_operations", _refuse)
    found = speed.measure_handoff(GPU, NativeOps(1))
    if not works:
        assert found is None
        assert "no memory operations here" in caplog.text
        return
    assert found is not None
    assert 0 < found.median_s <= found.p99_s < 1
    counters = FFNCounters()
    layers.exchange.collect(counters)
    # With nothing to compute.
    assert counters.total == 32 * 24 * 40
    assert counters.active == 0
    # With the kernels of each, which ran once before.
    assert num_kernels == 3 * (1 + 32 * 24)
    assert all(recording.is_dropped for recording in recorder.recordings)
    assert not caplog.records


class FakeGraph:
    """`torch.cuda.CUDAGraph`."""

    def reset(self) -> None:
        pass


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Which pool each record used."""
    used: list[int] = []
    handles = iter(range(1, 100))

    @contextmanager
    def graph(made: Any, pool: int, stream: Any, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        used.append(pool)
        yield

    monkeypatch.setattr(torch.cuda, "Stream", object)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(handles))
    monkeypatch.setattr(torch.cuda, "graph", graph)

    def refuse(device: int, pool: int) -> None:
        raise RuntimeError("not currently recording to mempool_id")

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", refuse, raising=False)
    return used


def test_records_share_a_pool_while_one_of_them_lives(pools: list[int]) -> None:
    recorder = CudaRecorder(GPU)
    first = recorder.record(lambda: None)
    second = recorder.record(lambda: None)
    first.drop()
    third = recorder.record(lambda: None)
    assert pools == [1, 1, 1]
    second.drop()
    third.drop()
    fourth = recorder.record(lambda: None)
    assert pools[-1] == 2
    del fourth
    recorder.record(lambda: None)
    assert pools[-1] == 3


def test_a_failed_record_leaves_its_pool(pools: list[int]) -> None:
    def fail() -> None:
        raise RuntimeError("cannot be captured")

    recorder = CudaRecorder(GPU)
    kept = [recorder.record(lambda: None)]
    with pytest.raises(RuntimeError, match="cannot be captured"):
        recorder.record(fail)
    kept += [recorder.record(lambda: None), recorder.record(lambda: None)]
    assert pools == [1, 1, 2, 2]


def test_a_record_that_the_driver_gave_up_is_over_for_torch_too(
    pools: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, int, int]] = []
    for name in ("endAllocateToPool", "releasePool"):

        def tell(device: int, pool: int, name: str = name) -> None:
            told.append((name, device, pool))

        monkeypatch.setattr(torch._C, f"_cuda_{name}", tell, raising=False)

    def fail() -> None:
        assert not gc.isenabled()
        raise RuntimeError("the capture is invalid")

    recorder = CudaRecorder(GPU)
    recorder.record(lambda: None)
    assert not told
    with pytest.raises(RuntimeError, match="the capture is invalid"):
        recorder.record(fail)
    index = GPU.device.index
    assert told == [("endAllocateToPool", index, 2), ("releasePool", index, 2)]
    assert gc.isenabled()


@pytest.mark.parametrize(("num_cores", "sleeps"), [(2, True), (5, True), (6, False), (64, False)])
def test_the_wait_sleeps_where_every_core_is_a_worker(
    num_cores: int, sleeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            self.blocking = blocking

        def record(self, stream: Any) -> None:
            waited.append("recorded")

        def synchronize(self) -> None:
            waited.append("slept" if self.blocking else "spun")

    class Stream:
        def synchronize(self) -> None:
            waited.append("spun")

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(num_cores)), raising=False)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    CudaRecorder(GPU).synchronize()
    assert waited == (["recorded", "slept"] if sleeps else ["spun"])
    waiting_event().synchronize()
    assert waited[-1] == ("slept" if sleeps else "spun")
