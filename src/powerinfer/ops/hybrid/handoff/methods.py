"""Two methods for the device to hand a layer to the CPU and take the result back.

The device has written the FFN input and the cold active neurons to pinned memory; `signal` notifies
the CPU, which computes, and the work of the stream after `wait` sees its result. In between the
device computes its own neurons. Paper: "Hybrid Execution".

A step is ``begin_step``, then per layer ``signal`` and ``wait``, then, once the device has
finished, ``end_step``. If signals and waits were recorded into a graph, the replay replaces them.
One layer is in progress at a time. A method that fails is not recorded again.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.cpu.exchange import NativeExchange
from powerinfer.ops.gpu.memory import KernelError, is_out_of_memory
from powerinfer.ops.gpu.recorder import CudaRecorder, waiting_event
from powerinfer.ops.hybrid.handoff.driver import CudaDriver, MemoryOperation, OperationKind

__all__ = [
    "FAILURES",
    "EagerHandoff",
    "Handoff",
    "HandoffChoice",
    "MemoryOperationHandoff",
    "cause_of",
    "is_exhaustion",
]

_log = logging.getLogger(__name__)

# torch reports refusals of the driver as RuntimeError; errors of Triton are KernelErrors here.
FAILURES = (DeviceError, RuntimeError)

# A device that does not wait passes the flag within microseconds.
_TRIAL_S = 0.005
_TRIAL_LIMIT_S = 2.0


class Handoff(Protocol):
    """A method of handing over layers of an exchange."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    def begin_step(self, num_tokens: int, layers: Sequence[int]) -> None:
        """Prepare, before the device starts, for the signals of `layers` in this order."""
        ...

    def signal(self, layer: int, num_tokens: int) -> None:
        """Queue the signal that the input of the layer is complete."""
        ...

    def wait(self, layer: int, num_tokens: int) -> None:
        """Queue the wait for the CPU's result."""
        ...

    def end_step(self) -> None:
        """Finish the step after the device has.

        Raises:
            DeviceError: the CPU's half failed or did not answer in time; results are worthless.
        """
        ...

    def abort_step(self) -> None:
        """Stop the CPU's half after another failure, instead of `end_step`.

        The device need not have finished, or begun; it passes its remaining waits.
        """
        ...


class EagerHandoff:
    """The calling thread waits for the signal and computes; cannot be recorded.

    The only method on torch's cpu device, and the last resort elsewhere: it costs calls of Python
    and of the driver in every layer.
    """

    name = "eager"

    def __init__(self, exchange: NativeExchange, *, is_cuda: bool) -> None:
        """Take the CPU's half; `is_cuda`: the device is asynchronous and must be waited for."""
        self._exchange = exchange
        self._is_ready = waiting_event() if is_cuda else None

    def begin_step(self, num_tokens: int, layers: Sequence[int]) -> None:
        """Reset the state that an aborted step may have left."""
        with suppress(DeviceError):
            self._exchange.raise_failure()

    def signal(self, layer: int, num_tokens: int) -> None:
        """Mark the position in the stream, so that `wait` ignores later work."""
        if self._is_ready is not None:
            self._is_ready.record()

    def wait(self, layer: int, num_tokens: int) -> None:
        """Wait for the mark, then compute."""
        if self._is_ready is not None:
            self._is_ready.synchronize()
        self._exchange.run(layer, num_tokens)

    def end_step(self) -> None:
        """See the protocol."""
        self._exchange.raise_failure()

    def abort_step(self) -> None:
        """Do nothing: no work runs but what the device requests."""


class MemoryOperationHandoff:
    """Words in pinned memory that the stream writes and awaits, and a spinning CPU thread answers.

    Everything is on one stream: waits in parallel branches of a graph may share a hardware queue
    and block each other. The device resets the done flag itself, so that a recorded step may be
    replayed with the same constants.
    """

    name = "memory_operations"

    def __init__(self, exchange: NativeExchange, driver: CudaDriver) -> None:
        """Take the CPU's half, which clears ready flags and sets done flags, in pinned memory.

        Raises:
            DeviceError: it has no flags.
        """
        flags = exchange.buffers.flags
        if flags is None:
            raise DeviceError("memory operations need an exchange with flags")
        self._exchange = exchange
        self._driver = driver
        self._flags = flags
        self._is_begun = False
        first = driver.device_address(flags.ctypes.data)
        self._ready_addresses, self._done_addresses = (
            [first + row * flags.strides[0] + 4 * layer for layer in range(flags.shape[1])]
            for row in range(2)
        )

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
        write = MemoryOperation(OperationKind.WRITE, self._ready_addresses[layer], 1)
        self._queue([write])

    def wait(self, layer: int, num_tokens: int) -> None:
        """Await the done flag, then clear it."""
        address = self._done_addresses[layer]
        self._queue(
            [
                MemoryOperation(OperationKind.WAIT, address, 1),
                MemoryOperation(OperationKind.WRITE, address, 0),
            ]
        )

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
        self._flags.fill(0)
        recording = recorder.record(self._queue_trial)
        try:
            recording.replay()
            has_signalled = _is_soon_set(self._flags[0])
            time.sleep(_TRIAL_S)
            is_held = self._flags[0, 0] == 1
        finally:
            self._flags[1, 0] = 1
            recorder.synchronize()
            recording.drop()
        is_released = self._flags[0, 0] == 2
        self._flags.fill(0)
        if not (has_signalled and is_held and is_released):
            raise DeviceError(
                "a trial of memory operations failed: the device "
                + ("did not signal" if not has_signalled else "did not wait for the CPU")
            )

    def _queue_trial(self) -> None:
        self.signal(0, 1)
        self.wait(0, 1)
        self._queue([MemoryOperation(OperationKind.WRITE, self._ready_addresses[0], 2)])

    def _queue(self, operations: list[MemoryOperation]) -> None:
        self._driver.memory_operations(torch.cuda.current_stream().cuda_stream, operations)


def _is_soon_set(words: npt.NDArray[np.uint32]) -> bool:
    """Test whether the first word becomes other than 0 within a short time."""
    deadline = time.monotonic() + _TRIAL_LIMIT_S
    while words[0] == 0:
        if time.monotonic() > deadline:
            return False
    return True


class HandoffChoice:
    """The hand-off to record steps with, and whether steps can be recorded at all."""

    def __init__(self, make: Callable[[], Handoff], eager: Handoff | None) -> None:
        """Make nothing before a step needs it.

        Args:
            make: makes a method that can be recorded; raises one of FAILURES if it does not work.
            eager: method of recorded steps that hand no layer over; None: record nothing.
        """
        self._make = make
        self._eager = eager
        self._handoff: Handoff | None = None
        self._has_failed = False

    def best(self, *, hands_over: bool) -> Handoff | None:
        """Return the hand-off to record with; None if the step must run eagerly.

        Raises:
            OutOfDeviceMemoryError: there is no room to try it out.
        """
        if self._eager is None or not hands_over:
            return self._eager
        if self._handoff is None and not self._has_failed:
            try:
                self._handoff = self._make()
            except FAILURES as error:
                if is_exhaustion(error):
                    raise OutOfDeviceMemoryError(
                        "the device has no room to try out a hand-off",
                        remedy="use a smaller {vram_budget}",
                    ) from error
                self._give_up(error)
        return self._handoff

    def abandon(self, handoff: Handoff, error: BaseException) -> None:
        """Never record with a hand-off again, and log the reason.

        Raises:
            KeyboardInterrupt: it caused the error; the hand-off stays.
        """
        if handoff is self._eager:
            cause = cause_of(error)
            self._eager = None
            _log.warning("steps run without being recorded, which is slower: %s", str(cause))
        elif handoff is self._handoff:
            self._give_up(error)

    @property
    def is_exhausted(self) -> bool:
        """True if no step can be recorded any more."""
        return self._eager is None or self._has_failed

    def _give_up(self, error: BaseException) -> None:
        cause = cause_of(error)
        self._handoff, self._has_failed = None, True
        _log.warning(
            "handing layers to the CPU in recorded steps failed: %s; steps run eagerly from now "
            "on, slower",
            str(cause),
        )


def cause_of(error: BaseException) -> BaseException:
    """Return the first cause of an error: torch ends a failed recording with another error.

    Raises:
        KeyboardInterrupt: it is the first cause.
    """
    first, passed = error, {id(error)}
    # If an error is raised twice, the chain may be a cycle.
    # The cause of a KernelError takes many lines.
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
    """Test whether the cause of an error is a lack of memory of the device or page-locked memory.

    Raises:
        KeyboardInterrupt: it is the first cause.
    """
    return is_out_of_memory(cause_of(error))
