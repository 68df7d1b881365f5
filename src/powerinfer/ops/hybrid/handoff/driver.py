"""Functions of the CUDA driver that torch does not offer, called through ctypes.

Stream memory operations tie a CUDA stream to a CPU thread without Python in between; they are
recorded when the stream is being captured into a graph. Signatures and numbers are those of the
CUDA driver API reference ("Stream Memory Operations"). The functions are named as the library
exports them: the header maps `cuStreamBatchMemOp` to the symbol with `_v2`, while the plain symbol
is the first version, which most systems disable.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from powerinfer.errors import DeviceError

__all__ = ["CudaDriver", "MemoryOperation", "OperationKind", "load_driver"]

LIBRARY = "libcuda.so.1"

# CUdevice_attribute: support of the first version of the memory operations (0 also if the second
# version is not supported), and of 64-bit operations of the second version.
_MEMORY_OPERATIONS_V1 = 92
_MEMORY_OPERATIONS_64_BIT = 122

_WAIT_EQUAL = 1

_POINTER = ctypes.c_void_p
_UNSIGNED = ctypes.c_uint
_INT = ctypes.c_int


class OperationKind(IntEnum):
    """CUstreamBatchMemOpType of the two operations used here."""

    WAIT = 1
    WRITE = 2


@dataclass(frozen=True, slots=True)
class MemoryOperation:
    """Wait until a word equals a value, or write the value.

    Attributes:
        kind: a write follows a fence, so that earlier writes of the stream are visible to a reader
            of the word.
        address: address of a 32-bit word for the device.
        value: 0 to 2^32 - 1.
    """

    kind: OperationKind
    address: int
    value: int


class _OperationParameters(ctypes.Structure):
    """CUstreamBatchMemOpParams: a union of 48 bytes with the same layout for wait and write."""

    _fields_ = (
        ("operation", _UNSIGNED),
        ("address", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", _UNSIGNED),
        ("alias", ctypes.c_uint64),
        ("padding", ctypes.c_uint64),
    )


# Symbol to argument types; all functions return a CUresult.
_SIGNATURES: dict[str, tuple[type[object], ...]] = {
    "cuGetErrorName": (_INT, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGet": (ctypes.POINTER(_INT), _INT),
    "cuDeviceGetAttribute": (ctypes.POINTER(_INT), _INT, _INT),
    "cuMemHostGetDevicePointer_v2": (ctypes.POINTER(ctypes.c_uint64), _POINTER, _UNSIGNED),
    "cuStreamBatchMemOp_v2": (
        _POINTER,
        _UNSIGNED,
        ctypes.POINTER(_OperationParameters),
        _UNSIGNED,
    ),
}


class CudaDriver:
    """Functions of one loaded driver library; streams are their handles as integers.

    Every method raises DeviceError if the driver lacks the function or reports a failure.
    """

    def __init__(self, library: object) -> None:
        """Take a loaded library (`load_driver` loads the system's)."""
        self._library = library
        self._functions: dict[str, Callable[..., int]] = {}

    def memory_operations(self, stream: int, operations: Sequence[MemoryOperation]) -> None:
        """Queue operations, in this order, as one entry of the stream."""
        parameters = _parameters(operations)
        self._call("cuStreamBatchMemOp_v2", stream, len(operations), parameters, 0)

    def device_address(self, host_address: int) -> int:
        """Return the device's address of pinned host memory."""
        address = ctypes.c_uint64()
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), host_address, 0)
        return address.value

    def require_memory_operations(self, device_index: int) -> None:
        """Check the driver's attributes of a device; only a trial can show that they work.

        Raises:
            DeviceError: it has no memory operations.
        """
        numbers = (_MEMORY_OPERATIONS_V1, _MEMORY_OPERATIONS_64_BIT)
        if not any(self._attribute(device_index, number) for number in numbers):
            raise DeviceError(f"device {device_index} has no stream memory operations")

    def _attribute(self, device_index: int, number: int) -> int:
        device, value = _INT(), _INT()
        self._call("cuDeviceGet", ctypes.byref(device), device_index)
        self._call("cuDeviceGetAttribute", ctypes.byref(value), number, device.value)
        return value.value

    def _call(self, name: str, *arguments: object) -> None:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._bound(name)
        error = function(*arguments)
        if error:
            raise DeviceError(f"the CUDA driver's {name} failed with {self._error_name(error)}")

    def _bound(self, name: str) -> Callable[..., int]:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise DeviceError(f"the CUDA driver has no {name}; install a newer driver") from None
        function.argtypes = _SIGNATURES[name]
        function.restype = _INT
        bound: Callable[..., int] = function
        return bound

    def _error_name(self, error: int) -> str:
        name = ctypes.c_char_p()
        self._bound("cuGetErrorName")(error, ctypes.byref(name))
        return f"{name.value.decode()} ({error})" if name.value else f"error {error}"


def load_driver() -> CudaDriver:
    """Load the driver of this machine.

    Raises:
        DeviceError: there is no CUDA driver, as with an AMD device.
    """
    try:
        return CudaDriver(ctypes.CDLL(LIBRARY))
    except OSError as error:
        raise DeviceError(f"the CUDA driver library {LIBRARY} cannot be loaded: {error}") from None


def _parameters(operations: Sequence[MemoryOperation]) -> ctypes.Array[_OperationParameters]:
    array = (_OperationParameters * len(operations))()
    for place, operation in zip(array, operations, strict=True):
        place.operation = operation.kind
        place.address = operation.address
        place.value = operation.value
        place.flags = _WAIT_EQUAL if operation.kind is OperationKind.WAIT else 0
    return array
