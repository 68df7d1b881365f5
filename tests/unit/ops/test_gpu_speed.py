"""What is measured of a GPU, by a stand-in whose kernels take known times."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from powerinfer.ops.hybrid import speed  # noqa: E402

READ, GATHER, KERNEL_S, GRAPH_S = 8e11, 5e11, 2e-6, 15e-6


class _GPU:
    """Adds up what kernels would take: a launch each, and the bytes that they read."""

    def __init__(self) -> None:
        self.clock = 0.0

    def run(self, num_kernels: int, seconds: float = 0.0) -> None:
        self.clock += num_kernels * KERNEL_S + seconds

    def to_device(self, array: np.ndarray) -> Any:
        return torch.from_numpy(array)

    def linear(self, x: Any, layers: list[Any]) -> list[Any]:
        self.run(len(layers), sum(layer.matrix.nbytes for layer in layers) / READ)
        return [torch.ones(1, 1) for _ in layers]

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        self.run(1)
        return x

    def add(self, x: Any, y: Any) -> None:
        self.run(1)


@pytest.fixture
def bench() -> Any:
    gpu = _GPU()

    def seconds(work: Callable[[], object]) -> float:
        before = gpu.clock
        work()
        return GRAPH_S + gpu.clock - before

    return SimpleNamespace(gpu=gpu, columns=4096, parts=32, recorder=None, seconds=seconds)


def _matrices(rows: int) -> list[Any]:
    return [SimpleNamespace(rows=rows, row_bytes=8192, nbytes=rows * 8192) for _ in range(2)]


def test_speeds_of_reading_leave_launches_out(bench: Any) -> None:
    """The cost model adds them: of half the bytes they would make up a tenth of the time."""
    large, small = _matrices(2000), _matrices(1000)
    found = speed._bytes_per_s(speed._read(bench, large), speed._read(bench, small))
    assert found == pytest.approx(READ)


def test_speeds_of_scattered_rows_leave_launches_out(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hot_ffn(x: Any, hot: Any, mask: Any) -> None:
        bench.gpu.run(4, int(mask.sum()) * (hot.up.row_bytes + hot.down.row_bytes) / GATHER)

    monkeypatch.setattr(speed, "hot_ffn", hot_ffn)
    large, small = _matrices(2000), _matrices(1000)
    found = speed._bytes_per_s(speed._gather(bench, large), speed._gather(bench, small))
    assert found == pytest.approx(GATHER)


def test_the_launches_of_a_part_leave_the_graphs_out(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = SimpleNamespace(nbytes=0)
    monkeypatch.setattr(speed, "_matrix", lambda *_: nothing)
    assert speed._launch_s(bench, "f16") == pytest.approx(5 * KERNEL_S)


def test_times_that_are_noise_still_give_a_speed() -> None:
    assert speed._bytes_per_s((1000, 2.0), (500, 3.0)) == 500.0
