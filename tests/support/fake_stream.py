"""A device made of Python threads: streams, events, memory operations, records.

Each stream is a thread that does what was queued, in order and on its own, so that the CPU's half
(which is real) meets a device that really runs beside it.
"""

import ctypes
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from patience import PATIENCE_S
from powerinfer.ops.hybrid.handoff import CudaDriver
from powerinfer.values import Batch, FloatArray

Action = Callable[[], None]


class Machine:
    """Knows all streams, and what is being recorded.

    Attributes:
        refuses_memory: memory operations cannot be recorded.
        is_broken: waits pass without waiting.
    """

    def __init__(self) -> None:
        self.streams: dict[int, FakeStream] = {}
        self.recorded: list[tuple[FakeStream, Action]] | None = None
        self.refuses_memory = False
        self.is_broken = False
        self.failures: list[BaseException] = []
        self.main = FakeStream(self)

    def close(self) -> None:
        for stream in self.streams.values():
            stream.actions.put(None)
            stream.thread.join(PATIENCE_S)
            assert not stream.thread.is_alive()
        assert not self.failures, self.failures

    def queue(self, action: Action) -> None:
        """Queue what stands for a kernel."""
        self.main.queue(action)


class FakeStream:
    """`torch.cuda.Stream`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.cuda_stream = 100 + len(machine.streams)
        machine.streams[self.cuda_stream] = self
        self.actions: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self.num_queued = self.num_done = 0
        self.thread = threading.Thread(target=self._work, daemon=True)
        self.thread.start()

    def queue(self, action: Action) -> None:
        if self.machine.recorded is not None:
            self.machine.recorded.append((self, action))
        else:
            self.num_queued += 1
            self.actions.put(action)

    @property
    def is_idle(self) -> bool:
        return self.num_done == self.num_queued

    def synchronize(self) -> None:
        assert self.machine.recorded is None, "a recorded step may not wait"
        reached = threading.Event()
        self.queue(reached.set)
        assert reached.wait(PATIENCE_S), "the stream hangs"

    def _work(self) -> None:
        while (action := self.actions.get()) is not None:
            try:
                action()
            except BaseException as error:  # noqa: BLE001
                self.machine.failures.append(error)
            self.num_done += 1


class FakeEvent:
    """`torch.cuda.Event`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.ticket = threading.Event()

    def record(self, stream: FakeStream | None = None) -> None:
        self.ticket = threading.Event()
        (stream or self._machine.main).queue(self.ticket.set)

    def synchronize(self) -> None:
        assert self._machine.recorded is None, "a recorded step may not wait"
        assert self.ticket.wait(PATIENCE_S), "the event never comes"


class FakeDriver(CudaDriver):
    """The driver's functions, done by the streams' threads on real memory."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(None)
        self._machine = machine

    def device_address(self, host_address: int) -> int:
        return host_address

    def require_memory_operations(self, device_index: int) -> None:
        pass

    def write(self, stream: int, address: int, value: int) -> None:
        if self._machine.recorded is not None and self._machine.refuses_memory:
            raise RuntimeError("memory operations cannot be recorded")
        word = ctypes.c_uint32.from_address(address)
        self._machine.streams[stream].queue(_writing(word, value))

    def wait_and_clear(self, stream: int, address: int) -> None:
        if not self._machine.is_broken:
            word = ctypes.c_uint32.from_address(address)
            self._machine.streams[stream].queue(_waiting(word, 1))
        self.write(stream, address, 0)


class FakeInputs:
    """`DeviceBatch` in numpy arrays."""

    def __init__(self, machine: Machine, x: FloatArray) -> None:
        self._machine = machine
        self._staged, self.x = np.empty_like(x), np.empty_like(x)

    def fill(self, batch: Batch, x: FloatArray) -> None:
        self._staged[...] = x

    def send(self) -> None:
        self._machine.queue(lambda: np.copyto(self.x, self._staged))


class FakeRecording:
    """`CudaRecording`: what was queued, to be queued again."""

    def __init__(self, actions: list[tuple[FakeStream, Action]], output: Any, error: float) -> None:
        self.actions, self.output = actions, output
        self.error = error
        self.is_dropped = False

    def replay(self) -> None:
        assert not self.is_dropped
        for stream, action in self.actions:
            stream.queue(action)

    def result(self) -> FloatArray:
        found: FloatArray = self.output + np.float32(self.error)
        return found

    def drop(self) -> None:
        assert not self.is_dropped
        self.is_dropped = True


class FakeRecorder:
    """`CudaRecorder`; keeps what it made.

    Attributes:
        recordings: all of them.
        errors: added to the results of the first of them.
        failures: raised by the first records, or waits for replays, instead of what they do.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.recordings: list[FakeRecording] = []
        self.errors: list[float] = []
        self.failures: dict[str, list[BaseException]] = {"record": [], "inputs": [], "wait": []}

    def _fail(self, where: str) -> None:
        if self.failures[where]:
            raise self.failures[where].pop(0)

    def working(self) -> AbstractContextManager[None]:
        return nullcontext()

    def inputs(self, x: FloatArray, batch: Batch) -> FakeInputs:
        self._fail("inputs")
        return FakeInputs(self.machine, x)

    def record(self, work: Callable[[], Any], shape: Any = None) -> FakeRecording:
        self.machine.main.synchronize()
        recorded: list[tuple[FakeStream, Action]] = []
        self.machine.recorded = recorded
        try:
            output = work()
            self._fail("record")
        finally:
            self.machine.recorded = None
        error = self.errors.pop(0) if self.errors else 0.0
        self.recordings.append(FakeRecording(recorded, output, error))
        return self.recordings[-1]

    def to_host(self, values: Any) -> FloatArray:
        self.machine.main.synchronize()
        return np.array(values)

    def synchronize(self) -> None:
        self._fail("wait")
        self.machine.main.synchronize()


@contextmanager
def running_machine(
    patch: pytest.MonkeyPatch, event: type[FakeEvent] = FakeEvent
) -> Iterator[Machine]:
    """A machine in the place of torch's CUDA streams and events."""
    machine = Machine()
    patch.setattr(torch.cuda, "Event", lambda **_: event(machine))
    patch.setattr(torch.cuda, "Stream", lambda: FakeStream(machine))
    patch.setattr(torch.cuda, "current_stream", lambda: machine.main)
    yield machine
    machine.close()


def _writing(word: Any, value: int) -> Action:
    def write() -> None:
        word.value = value

    return write


def _waiting(word: Any, value: int) -> Action:
    return lambda: _await(lambda: word.value == value)


def _await(is_there: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        assert time.monotonic() < deadline, "what the stream waits for never comes"
        time.sleep(0)
