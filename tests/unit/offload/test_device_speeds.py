"""Speeds of the GPU: measured once per pair of devices, assumed where it has no room."""

import itertools
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from powerinfer.errors import OutOfDeviceMemoryError
from powerinfer.offload import device_speeds
from powerinfer.offload.device_speeds import ASSUMED_GPU, machine_speeds
from powerinfer.offload.devices import Device
from powerinfer.ops.cpu import speed as native_speed
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.speed import measure_native_speed
from powerinfer.placement.cost_model import DeviceSpeed, GPUSpeed

MEASURED = GPUSpeed(DeviceSpeed(4e12, 3e12, 1e-5), 2e-5, 5e10, 7e-5)


class _GPU:
    """Stands in for the modules that import torch."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.calls: list[tuple[Any, ...]] = []
        self.num_released = 0

    def measure_gpu_speed(self, *arguments: Any) -> Any:
        self.calls.append(arguments)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def release_cached(self) -> None:
        self.num_released += 1


@pytest.fixture
def ops(monkeypatch: pytest.MonkeyPatch) -> NativeOps:
    speed = DeviceSpeed(1e10, 5e9, 2e-6)
    monkeypatch.setattr(native_speed, "measure_native_speed", lambda *_: speed)
    return NativeOps(threads=1)


def _stand_in(monkeypatch: pytest.MonkeyPatch, answer: Any) -> _GPU:
    gpu = _GPU(answer)
    for name in ("hybrid.speed", "gpu.memory"):
        module = SimpleNamespace(
            measure_gpu_speed=gpu.measure_gpu_speed,
            release_cached=gpu.release_cached,
            naming_gpu_failure=nullcontext,
        )
        monkeypatch.setitem(sys.modules, f"powerinfer.ops.{name}", module)
    return gpu


def test_a_gpu_is_measured_once(ops: NativeOps, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _stand_in(monkeypatch, MEASURED)
    device = Device("cuda:0", "a GPU for one test")
    first = machine_speeds(ops, "f32", device)
    second = machine_speeds(ops, "f32", device)
    assert first == second
    assert len(gpu.calls) == gpu.num_released == 1
    assert gpu.calls[0][:3] == ("cuda:0", ops, "f32")
    assert first.gpu == "a GPU for one test"
    assert not first.is_gpu_assumed
    assert first.cost.gpu.read_bytes_per_s == 4e12
    assert first.cost.cpu.gather_bytes_per_s == 5e9
    assert first.cost.handoff_s == 2e-5
    assert first.cost.run_s == 7e-5
    # Another format has other kernels, another GPU other speeds.
    machine_speeds(ops, "q4_0", device)
    machine_speeds(ops, "f32", Device("cuda:0", "another GPU"))
    assert len(gpu.calls) == 3


def test_a_full_gpu_is_assumed(
    ops: NativeOps, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gpu = _stand_in(monkeypatch, OutOfDeviceMemoryError("no room"))
    device = Device("cuda:0", "a full GPU")
    speeds = machine_speeds(ops, "f32", device)
    assert speeds.cost.gpu == device_speeds._ASSUMED.gpu
    assert speeds.is_gpu_assumed
    assert speeds.gpu == ASSUMED_GPU
    assert "was not measured (no room)" in caplog.text
    assert gpu.num_released == 1
    # The next run tries again.
    machine_speeds(ops, "f32", device)
    assert len(gpu.calls) == 2


def test_without_a_gpu_one_is_assumed(ops: NativeOps) -> None:
    for device in (None, Device("cpu", "interpreted", is_interpreted=True)):
        speeds = machine_speeds(ops, "f32", device)
        assert speeds.gpu == ASSUMED_GPU
        assert speeds.is_gpu_assumed
        assert speeds.cost.cpu == DeviceSpeed(1e10, 5e9, 2e-6)


def test_the_assumed_gpu_is_that_of_the_data_sheet(ops: NativeOps) -> None:
    """1008 GB/s, 85 % of it in one piece and 60 % in scattered rows; see where it is assumed."""
    cost = machine_speeds(ops, "f32", None).cost
    assert cost.gpu.read_bytes_per_s == pytest.approx(0.85 * 1008e9, rel=0.02)
    assert cost.gpu.gather_bytes_per_s == pytest.approx(0.60 * 1008e9, rel=0.02)
    assert cost.gpu.launch_s == pytest.approx(5 * 2e-6)
    assert cost.handoff_s == pytest.approx(15e-6)
    assert cost.transfer_bytes_per_s == pytest.approx(22e9)
    # Two copies, the launch of the graph, the wait.
    assert cost.run_s == pytest.approx(10e-6 + 10e-6 + 15e-6 + 25e-6)


def test_speeds_are_bytes_over_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of which every look takes half a second."""
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(native_speed, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    monkeypatch.setattr(native_speed, "_MATRIX_BYTES", 1 << 20)
    speed = measure_native_speed(NativeOps(threads=1), "f16")
    # Two matrices of a MiB, half a second each.
    assert speed.read_bytes_per_s == (2 << 20) / 1.0
    # About a tenth of 128 rows of 4096 f16, the first round left out. All weights are the same
    # number and x adds up to less than zero, so that no neuron fires and no row of down is read.
    chosen = [(np.random.default_rng(seed).random(128) < 0.1).sum() for seed in (1, 2, 3, 4)]
    assert speed.gather_bytes_per_s == np.median(chosen) * 8192 / 0.5
    assert speed.launch_s == 0.5


def test_the_cpu_is_really_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_speed, "_MATRIX_BYTES", 1 << 20)
    steps = []
    for name in ("f16", "q4_0", "q8_0", "q6_k"):
        speed = measure_native_speed(
            NativeOps(threads=1), name, lambda done, total: steps.append((done, total))
        )
        assert speed.read_bytes_per_s > 0
        assert speed.gather_bytes_per_s > 0
        assert speed.launch_s > 0
    assert steps[-1][0] == steps[-1][1]
