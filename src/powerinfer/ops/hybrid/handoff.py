"""Handing a layer from the device to the CPU, and taking the result back, in one of two ways.

The device has written the FFN input and the cold active neurons to pinned memory; `signal` notifies
the CPU, which computes, and the work of the stream after `wait` sees its result. In between the
device computes its own neurons. Paper: "Hybrid Execution".

A step is ``begin_step``, then per layer ``signal`` and ``wait``, then, once the device has
finished, ``end_step``. If signals and waits were recorded into a graph, the replay replaces them.
One layer is in progress at a time. A hand-off that fails is not recorded again.
"""

import ctypes
import logging
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import torch

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.gpu.memory import KernelError, is_out_of_memory
from powerinfer.ops.gpu.recorder import CudaRecorder, waiting_event

__all__ = [
    "FAILURES",
    "CudaDriver",
    "EagerHandoff",
    "Handoff",
    "HandoffChoice",
    "MemoryOperationHandoff",
    "cause_of",
    "is_exhaustion",
    "load_driver",
]

_log = logging.getLogger(__name__)

# torch reports refusals of the driver as RuntimeError; errors of Triton are KernelErrors here.
FAILURES = (DeviceError, RuntimeError)

# A device that does not wait passes the flag within microseconds.
_TRIAL_S = 0.005
_TRIAL_LIMIT_S = 2.0

LIBRARY = "libcuda.so.1"

# CUdevice_attribute: support of the first version of the memory operations (0 also if the second
# version is not supported), and of 64-bit operations of the second version.
_MEMORY_OPERATIONS = (92, 122)

# CUstreamBatchMemOpType. A write follows a fence: a reader of the word sees the stream's earlier
# writes.
_WAIT, _WRITE = 1, 2
_UNTIL_EQUAL = 1

# CUstreamBatchMemOpParams, 48 bytes: type, address, value, flags.
_PARAMETERS = struct.Struct("=I4xQQI20x")


class CudaDriver:
    """Functions of the CUDA driver that torch does not offer; streams are handles as integers.

    Stream memory operations tie a stream to a CPU thread without Python in between; they are
    recorded when the stream is being captured. Signatures and numbers are those of the CUDA driver
    API reference ("Stream Memory Operations"), names those that the library exports: the header
    maps `cuStreamBatchMemOp` to the symbol with `_v2`, while the plain one is the first version,
    which most systems disable.

    Every method raises DeviceError if the driver lacks the function or reports a failure.
    """

    def __init__(self, library: Any) -> None:
        """Take a loaded library (`load_driver` loads the system's)."""
        self._library = library

    def write(self, stream: int, address: int, value: int) -> None:
        """Queue a write of a 32-bit word, given its address for the device."""
        self._queue(stream, (_WRITE, address, value, 0))

    def wait_and_clear(self, stream: int, address: int) -> None:
        """Queue a wait until a word is 1, and a write of 0, as one entry of the stream."""
        self._queue(stream, (_WAIT, address, 1, _UNTIL_EQUAL), (_WRITE, address, 0, 0))

    def device_address(self, host_address: int) -> int:
        """Return the device's address of pinned host memory."""
        address, pointer = ctypes.c_uint64(), ctypes.c_void_p(host_address)
        self._call("cuMemHostGetDevicePointer_v2", ctypes.byref(address), pointer, 0)
        return address.value

    def require_memory_operations(self, device_index: int) -> None:
        """Check the driver's attributes of a device; only a trial can show that they work."""
        device, value = ctypes.c_int(), ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(device), device_index)
        for number in _MEMORY_OPERATIONS:
            self._call("cuDeviceGetAttribute", ctypes.byref(value), number, device.value)
            if value.value:
                return
        raise DeviceError(f"device {device_index} has no stream memory operations")

    def _queue(self, stream: int, *operations: tuple[int, int, int, int]) -> None:
        packed = b"".join(_PARAMETERS.pack(*operation) for operation in operations)
        self._call("cuStreamBatchMemOp_v2", ctypes.c_void_p(stream), len(operations), packed, 0)

    def _call(self, name: str, *arguments: object) -> None:
        """Call a function that returns a CUresult; ctypes passes bare integers as 32 bits."""
        function = getattr(self._library, name, None)
        if function is None:
            raise DeviceError(f"the CUDA driver has no {name}; install a newer driver")
        error = function(*arguments)
        if error:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(error, ctypes.byref(text))
            shown = f"{text.value.decode()} ({error})" if text.value else f"error {error}"
            raise DeviceError(f"the CUDA driver's {name} failed with {shown}")


def load_driver() -> CudaDriver:
    """Load the driver of this machine.

    Raises:
        DeviceError: there is no CUDA driver, as with an AMD device.
    """
    try:
        return CudaDriver(ctypes.CDLL(LIBRARY))
    except OSError as error:
        raise DeviceError(f"the CUDA driver library {LIBRARY} cannot be loaded: {error}") from None


class EagerHandoff:
    """The calling thread waits for the signal and computes; cannot be recorded.

    The only one on torch's cpu device, and the last resort elsewhere: it costs calls of Python and
    of the driver in every layer.
    """

    name = "eager"  # in reports

    def __init__(self, exchange: NativeExchange, *, is_cuda: bool) -> None:
        """Take the CPU's half; `is_cuda`: the device is asynchronous and must be waited for."""
        self._exchange = exchange
        self._is_ready = waiting_event() if is_cuda else None

    def begin_step(self, num_tokens: int, layers: Sequence[int]) -> None:
        """Prepare, before the device starts, for the signals of `layers` in this order."""
        # State that an aborted step may have left.
        with suppress(DeviceError):
            self._exchange.raise_failure()

    def signal(self, layer: int, num_tokens: int) -> None:
        """Queue the signal that the input of the layer is complete."""
        # `wait` ignores later work of the stream.
        if self._is_ready is not None:
            self._is_ready.record()

    def wait(self, layer: int, num_tokens: int) -> None:
        """Queue the wait for the CPU's result; here, wait for the signal and compute it."""
        if self._is_ready is not None:
            self._is_ready.synchronize()
        self._exchange.run(layer, num_tokens)

    def end_step(self) -> None:
        """Finish the step after the device has.

        Raises:
            DeviceError: the CPU's half failed or did not answer in time; results are worthless.
        """
        self._exchange.raise_failure()

    def abort_step(self) -> None:
        """Stop the CPU's half after another failure, instead of `end_step`.

        The device need not have finished, or begun; it passes its remaining waits.
        """


class MemoryOperationHandoff:
    """Words in pinned memory that the stream writes and awaits, and a spinning CPU thread answers.

    Everything is on one stream: waits in parallel branches of a graph may share a hardware queue
    and block each other. The device resets the done flag itself, so that a recorded step may be
    replayed with the same constants. For the methods of a step see `EagerHandoff`.
    """

    name = "memory_operations"

    def __init__(self, exchange: NativeExchange, driver: CudaDriver) -> None:
        """Take the CPU's half, which clears ready flags and sets done flags, in pinned memory."""
        flags = exchange.buffers.flags
        if flags is None:
            raise DeviceError("memory operations need an exchange with flags")
        self._exchange = exchange
        self._driver = driver
        self._flags = flags
        self._is_begun = False
        self._ready = driver.device_address(flags.ctypes.data)
        self._done = self._ready + flags.strides[0]

    def begin_step(self, num_tokens: int, layers: Sequence[int]) -> None:
        """Clear flags that a failed step may have left, and wake the CPU's thread."""
        if self._is_begun:
            # Two Ctrl-C prevented the end of the last step.
            self.abort_step()
        self._flags.fill(0)
        self._is_begun = True
        self._exchange.start_step(list(layers), num_tokens)

    def signal(self, layer: int, num_tokens: int) -> None:
        """Set the ready flag, after a fence."""
        self._driver.write(_stream(), self._ready + 4 * layer, 1)

    def wait(self, layer: int, num_tokens: int) -> None:
        """Await the done flag, then clear it."""
        self._driver.wait_and_clear(_stream(), self._done + 4 * layer)

    def end_step(self) -> None:
        """Join the CPU's thread."""
        try:
            self._exchange.finish_step()
            self._exchange.raise_failure()
        except DeviceError:
            self._is_begun = False
            raise
        self._is_begun = False

    def abort_step(self) -> None:
        """Join the CPU's thread without the layers that it still waits for."""
        self._exchange.abort_step()
        self._is_begun = False

    def check(self, recorder: CudaRecorder) -> None:
        """Test whether the device really waits: some accept waits and ignore them.

        Raises:
            DeviceError: it does not, or its writes do not arrive.
            RuntimeError: the operations cannot be recorded.
        """
        flags = self._flags

        def queue() -> None:
            self.signal(0, 1)
            self.wait(0, 1)
            self._driver.write(_stream(), self._ready, 2)

        flags.fill(0)
        recording = recorder.record(queue)
        try:
            recording.replay()
            deadline = time.monotonic() + _TRIAL_LIMIT_S
            while not (has_signalled := bool(flags[0, 0])) and time.monotonic() < deadline:
                pass
            time.sleep(_TRIAL_S)
            is_held = flags[0, 0] == 1
        finally:
            flags[1, 0] = 1
            recorder.synchronize()
            recording.drop()
        is_released = flags[0, 0] == 2
        flags.fill(0)
        if not (has_signalled and is_held and is_released):
            raise DeviceError(
                "a trial of memory operations failed: the device "
                + ("did not signal" if not has_signalled else "did not wait for the CPU")
            )


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


Handoff: TypeAlias = EagerHandoff | MemoryOperationHandoff


class HandoffChoice:
    """The hand-off to record steps with, and whether steps can be recorded at all."""

    def __init__(self, make: Callable[[], Handoff], eager: Handoff | None) -> None:
        """Make nothing before a step needs it.

        Args:
            make: makes a hand-off that can be recorded; raises one of FAILURES if it does not work.
            eager: hand-off of recorded steps that hand no layer over; None: record nothing.
        """
        # None once no step can be recorded any more.
        self._make = None if eager is None else make
        self._eager = eager
        self._handoff: Handoff | None = None

    def best(self, *, hands_over: bool) -> Handoff | None:
        """Return the hand-off to record with; None if no such step can be recorded.

        Raises:
            OutOfDeviceMemoryError: there is no room to try one out.
        """
        if self._make is not None and not hands_over:
            return self._eager
        if self._make is not None and self._handoff is None:
            try:
                self._handoff = self._make()
            except FAILURES as error:
                if is_exhaustion(error):
                    raise OutOfDeviceMemoryError(
                        "the device has no room to try out a hand-off",
                        remedy="use a smaller {vram_budget}",
                    ) from error
                self.abandon(None, error)
        return self._handoff

    def abandon(self, handoff: Handoff | None, error: BaseException) -> None:
        """Never record again, since a hand-off failed or None could be made; log the reason.

        Raises:
            KeyboardInterrupt: it caused the error; nothing changes.
        """
        cause = str(cause_of(error))
        self._handoff = self._make = None
        if handoff is self._eager:
            _log.warning("steps run without being recorded, which is slower: %s", cause)
        else:
            _log.warning(
                "handing layers to the CPU in recorded steps failed: %s; steps run eagerly from "
                "now on, slower",
                cause,
            )

    @property
    def is_exhausted(self) -> bool:
        """True if no step can be recorded any more."""
        return self._make is None


def cause_of(error: BaseException) -> BaseException:
    """Return the first cause of an error: torch ends a failed recording with another error.

    Raises:
        KeyboardInterrupt: it is the first cause.
    """
    # If an error is raised twice, the chain may be a cycle. The cause of a KernelError takes many
    # lines.
    first, passed = error, {id(error)}
    while (
        not isinstance(first, KernelError)
        and (before := first.__cause__ or first.__context__)
        and id(before) not in passed
    ):
        first = before
        passed.add(id(first))
    if isinstance(first, KeyboardInterrupt):
        raise first
    return first


def is_exhaustion(error: BaseException) -> bool:
    """Test whether the cause of an error, see `cause_of`, is a lack of memory."""
    return is_out_of_memory(cause_of(error))
