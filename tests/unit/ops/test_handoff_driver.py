"""The driver's functions are called by the right names with arguments of the right sizes.

The library is made of C callbacks with the prototypes of the CUDA driver API reference, so that
every argument goes through ctypes in both directions.
"""

import ctypes
import struct
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from powerinfer.errors import DeviceError
from powerinfer.ops.hybrid import handoff
from powerinfer.ops.hybrid.handoff import CudaDriver

STREAM = 0x7F12_3456_789A_BCD0
ADDRESS = 0x7F00_DEAD_BEE0

_I, _U, _P, _Q = (ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint64)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cuGetErrorName": (_I, _P),
    "cuDeviceGet": (_P, _I),
    "cuDeviceGetAttribute": (_P, _I, _I),
    "cuMemHostGetDevicePointer_v2": (_P, _P, _U),
    "cuStreamBatchMemOp_v2": (_P, _U, _P, _U),
}


class Library:
    """Records calls; a function answers with what `answers` gives for its name, else success."""

    def __init__(self, **answers: Callable[..., int]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._answers = answers
        self._kept: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in PROTOTYPES:
            raise AttributeError(name)

        def answer(*arguments: Any) -> int:
            self.calls.append((name, *arguments))
            found = self._answers.get(name)
            return 0 if found is None else found(*arguments)

        self._kept[name] = ctypes.CFUNCTYPE(ctypes.c_int, *PROTOTYPES[name])(answer)
        # The caller knows no prototype, as for a library that was loaded.
        address = ctypes.cast(self._kept[name], ctypes.c_void_p).value
        assert address is not None
        return ctypes.CFUNCTYPE(ctypes.c_int)(address)


def _store(address: int, kind: Any, value: int) -> None:
    kind.from_address(address).value = value


def _operations(address: int, count: int) -> list[tuple[int, int, int, int]]:
    """Type, address, value and flags of each; CUstreamBatchMemOpParams takes 48 bytes."""
    raw = ctypes.string_at(address, 48 * count)
    found = []
    for start in range(0, len(raw), 48):
        kind, where, value, flags = struct.unpack_from("<I4xQQI", raw, start)
        found.append((kind, where, value, flags))
    return found


# Type, address, value, flags. Flag 1 of a wait: until equal. Flag 0 of a write: after a fence.
WAIT_AND_CLEAR = [(1, ADDRESS, 1, 1), (2, ADDRESS, 0, 0)]
WRITE = [(2, ADDRESS + 4, 0xFFFF_FFFF, 0)]


def test_memory_operations_lie_as_the_driver_reads_them() -> None:
    batches: list[Any] = []

    def keep(stream: int, count: int, operations: int, flags: int) -> int:
        batches.append((stream, count, _operations(operations, count), flags))
        return 0

    driver = CudaDriver(Library(cuStreamBatchMemOp_v2=keep))
    driver.wait_and_clear(STREAM, ADDRESS)
    driver.write(STREAM, ADDRESS + 4, 0xFFFF_FFFF)
    assert batches == [(STREAM, 2, WAIT_AND_CLEAR, 0), (STREAM, 1, WRITE, 0)]


def test_pinned_memory_may_lie_elsewhere_for_the_device() -> None:
    def answer(found: int, host: int, flags: int) -> int:
        assert flags == 0
        _store(found, _Q, host + 0x1000)
        return 0

    driver = CudaDriver(Library(cuMemHostGetDevicePointer_v2=answer))
    assert driver.device_address(ADDRESS) == ADDRESS + 0x1000


@pytest.mark.parametrize("known", [(), (92,), (122,)])
def test_a_device_has_memory_operations_if_either_version_is_there(known: tuple[int, ...]) -> None:
    def device(found: int, index: int) -> int:
        _store(found, _I, index + 10)
        return 0

    def attribute(found: int, number: int, handle: int) -> int:
        assert handle == 13
        _store(found, _I, int(number in known))
        return 0

    driver = CudaDriver(Library(cuDeviceGet=device, cuDeviceGetAttribute=attribute))
    if known:
        driver.require_memory_operations(3)
    else:
        with pytest.raises(DeviceError, match="device 3 has no stream memory operations"):
            driver.require_memory_operations(3)


def test_a_failure_names_the_function_and_the_error() -> None:
    name = ctypes.create_string_buffer(b"CUDA_ERROR_NOT_PERMITTED")

    def error_name(error: int, found: int) -> int:
        assert error == 800
        _store(found, _P, ctypes.addressof(name))
        return 0

    driver = CudaDriver(Library(cuStreamBatchMemOp_v2=lambda *_: 800, cuGetErrorName=error_name))
    with pytest.raises(
        DeviceError, match=r"cuStreamBatchMemOp_v2 failed with CUDA_ERROR_NOT_PERMITTED \(800\)"
    ):
        driver.write(STREAM, ADDRESS, 1)


def test_an_error_without_a_name_is_shown_by_its_number() -> None:
    driver = CudaDriver(Library(cuStreamBatchMemOp_v2=lambda *_: 7, cuGetErrorName=lambda *_: 1))
    with pytest.raises(DeviceError, match="cuStreamBatchMemOp_v2 failed with error 7"):
        driver.write(STREAM, ADDRESS, 1)


def test_an_old_driver_lacks_functions() -> None:
    with pytest.raises(DeviceError, match="has no cuStreamBatchMemOp_v2; install a newer driver"):
        CudaDriver(object()).write(STREAM, ADDRESS, 1)


def test_a_machine_without_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff, "LIBRARY", "libnothing-of-this-name.so.1")
    with pytest.raises(DeviceError, match="libnothing-of-this-name"):
        handoff.load_driver()
