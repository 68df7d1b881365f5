"""The driver's own memory on a GPU: measured by NVML, or assumed, and counted in the plan."""

import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from powerinfer.offload import problem as placement_problem  # noqa: E402
from powerinfer.offload.devices import Device  # noqa: E402
from powerinfer.offload.model_sizes import CODE_BYTES, CONTEXT_BYTES  # noqa: E402
from powerinfer.ops.gpu import devices  # noqa: E402
from powerinfer.options.options import EngineOptions  # noqa: E402
from powerinfer.options.vram_budget import MARGIN_BYTES  # noqa: E402

MIB = 1 << 20
GPU = Device("cuda:0", "a GPU")


class Nvml:
    """The library, and a GPU that others use, too."""

    def __init__(self) -> None:
        self.used = 300 * MIB
        self.context = 617 * MIB
        self.error = 0
        self.num_open = 0
        self.asked: list[bytes] = []

    def use(self) -> None:
        """Use the GPU; the first time creates the context."""
        self.used, self.context = self.used + self.context, 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.num_open += not self.error
        return self.error

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.num_open -= 1
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:  # noqa: N802
        self.asked.append(uuid)
        handle._obj.value = 7
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> int:  # noqa: N802
        assert handle.value == 7
        info._obj[2] = self.used
        return 0


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    made = Nvml()

    def zeros(count: int, *, device: str) -> Any:
        assert device == "cuda:0"
        return SimpleNamespace(add_=lambda _: made.use())

    cuda = SimpleNamespace(
        get_device_properties=lambda device: SimpleNamespace(uuid="1234"),
        synchronize=lambda device: None,
        empty_cache=lambda: None,
    )
    fake = SimpleNamespace(device=torch.device, zeros=zeros, cuda=cuda)
    monkeypatch.setattr(devices, "torch", fake)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: made)
    monkeypatch.setattr(devices, "free_bytes", lambda _: (10 << 30) - made.used)
    yield made
    assert made.num_open == 0


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    devices.context_bytes.cache_clear()
    yield
    devices.context_bytes.cache_clear()


def test_what_the_first_use_takes_is_the_context(nvml: Nvml) -> None:
    assert devices.context_bytes("cuda:0") == 617 * MIB
    assert set(nvml.asked) == {b"GPU-1234"}
    # Once in a process: later uses take nothing more.
    assert devices.context_bytes("cuda:0") == 617 * MIB


def _no_library(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    patch.setattr(ctypes, "CDLL", refuse)


def _another_library(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(nvmlInit_v2=lambda: 0))


def _an_error(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    nvml.error = 999


def _used_before(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    nvml.use()


def _others_took_more(nvml: Nvml, patch: pytest.MonkeyPatch) -> None:
    nvml.context = 5 << 30


@pytest.mark.parametrize(
    "happens", [_no_library, _another_library, _an_error, _used_before, _others_took_more]
)
def test_a_context_that_cannot_be_measured_is_assumed(
    happens: Callable[[Nvml, pytest.MonkeyPatch], None],
    nvml: Nvml,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    happens(nvml, monkeypatch)
    assert devices.context_bytes("cuda:0") is None
    free = (10 << 30) - nvml.used
    budget = placement_problem.budget_bytes(EngineOptions(), GPU)
    assert budget == free + CONTEXT_BYTES - MARGIN_BYTES
    assert placement_problem._driver_bytes(GPU) == CONTEXT_BYTES + CODE_BYTES
    assert "the driver's own memory on a GPU cannot be measured: 700.0 MiB are" in caplog.text


def test_the_measured_context_is_counted(nvml: Nvml, caplog: pytest.LogCaptureFixture) -> None:
    """All free memory is what was free before the first use."""
    budget = placement_problem.budget_bytes(EngineOptions(), GPU)
    assert budget == (10 << 30) - 300 * MIB - MARGIN_BYTES
    assert placement_problem._driver_bytes(GPU) == 617 * MIB + CODE_BYTES
    assert not caplog.records


def test_a_gpu_of_another_machine_and_interpreted_kernels() -> None:
    assert placement_problem._driver_bytes(None) == CONTEXT_BYTES + CODE_BYTES
    interpreted = Device("cpu", "a stand-in", is_interpreted=True)
    assert placement_problem._driver_bytes(interpreted) == 0
    assert devices.context_bytes("cpu") is None
