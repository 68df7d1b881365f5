"""Streams, events and threads of a device whose work comes when it likes.

Tensors lie on torch's cpu device and work is done when it is queued, by whichever thread queues it.
What a real device would be free to do otherwise is found by logic instead of luck: streams, events
and threads keep vector clocks, and an access to memory that nothing orders behind an earlier one
which it must not meet is noted in `Machine.races`, whatever the moment it happened at. Moments vary
as well: a piece of work begins and ends a drawn number of steps late unless somebody waits for it,
and an event is reached a drawn number of questions late.
"""

import threading
import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from patience import PATIENCE_S

__all__ = ["FakeEvent", "FakeStream", "LateExecutor", "Machine"]

Clock = dict[int, int]
T = TypeVar("T")


def _join(clock: Clock, other: Clock) -> None:
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


class FakeStream:
    """`torch.cuda.Stream`: what is ordered before the work queued next, by stream.

    Attributes:
        kept: addresses of memory that is given to nobody else before the stream has got there.
    """

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.number = len(machine.streams)
        self.clock: Clock = {}
        self.kept: set[int] = set()
        machine.streams.append(self)

    def wait_event(self, event: "FakeEvent") -> None:
        if self is self.machine.main:
            self.machine.num_waits += event.num_questions > 0
        _join(self.clock, event.clock)

    def synchronize(self) -> None:
        _join(self.machine.known, self.clock)

    def tick(self) -> tuple[int, int]:
        """Queue a piece of work: its place."""
        _join(self.clock, self.machine.known)
        self.clock[self.number] = self.clock.get(self.number, 0) + 1
        return self.number, self.clock[self.number]


class FakeEvent:
    """`torch.cuda.Event`."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.clock: Clock = {}
        self.num_questions = 0

    def record(self, stream: FakeStream | None = None) -> None:
        chosen = stream or self.machine.current_stream()
        chosen.tick()
        self.clock = dict(chosen.clock)
        self.num_questions = self.machine.draw_delay()

    def query(self) -> bool:
        self.num_questions -= 1
        if self.num_questions >= 0:
            return False
        _join(self.machine.known, self.clock)
        return True

    def synchronize(self) -> None:
        self.num_questions = 0
        _join(self.machine.known, self.clock)


class Machine:
    """Streams, the memory that they meet in, and how late things happen.

    Attributes:
        races: what was found.
        most_late: steps or questions that something may come late.
        num_steps: told by `step`.
        num_pieces: of work that ran beside the steps.
        num_waits: for work that was not over, by threads and by streams.
    """

    def __init__(self, seed: int, most_late: int) -> None:
        self.races: list[str] = []
        self.streams: list[FakeStream] = []
        self.executors: list[weakref.ref[LateExecutor]] = []
        self.most_late = most_late
        self.num_steps = 0
        self.num_pieces = 0
        self.num_waits = 0
        self._random = np.random.default_rng(seed)
        self._local = threading.local()
        self._written: dict[Hashable, tuple[int, int]] = {}
        self._read: defaultdict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        self.turn = threading.Condition()
        self.main = FakeStream(self)

    def draw_delay(self) -> int:
        with self.turn:
            return int(self._random.integers(0, self.most_late + 1))

    def step(self) -> None:
        """A step has ended: what waits for its number may begin, and what must has ended."""
        with self.turn:
            self.num_steps += 1
            self.turn.notify_all()
        for reference in self.executors:
            executor = reference()
            if executor is not None:
                executor.finish_due()

    # What each thread knows and queues on.

    @property
    def known(self) -> Clock:
        """Places that the device has passed for certain, as far as this thread knows."""
        found: Clock = self._local.__dict__.setdefault("known", {})
        return found

    def current_stream(self, *_device: object) -> FakeStream:
        found: FakeStream = self._local.__dict__.get("stream", self.main)
        return found

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before = self.current_stream()
        self._local.stream = stream
        yield
        self._local.stream = before

    # Accesses to memory, by names of its parts.

    def write(self, *names: Hashable) -> None:
        """The current stream overwrites memory: all that used it must be over."""
        stream = self.current_stream()
        place = stream.tick()
        with self.turn:
            for name in names:
                self._check(stream.clock, name, [*self._read.pop(name, []), *self._last(name)])
                self._written[name] = place

    def read(self, *names: Hashable) -> None:
        """The current stream reads memory: what was written there must have arrived."""
        stream = self.current_stream()
        place = stream.tick()
        with self.turn:
            for name in names:
                self._check(stream.clock, name, self._last(name))
                self._read[name].append(place)

    def read_on_host(self, name: Hashable) -> None:
        """This thread reads what the device wrote."""
        with self.turn:
            self._check(self.known, name, self._last(name))

    def write_on_host(self, name: Hashable) -> None:
        """This thread overwrites what the device read."""
        with self.turn:
            self._check(self.known, name, self._read.pop(name, []))

    def _last(self, name: Hashable) -> list[tuple[int, int]]:
        return [self._written[name]] if name in self._written else []

    def _check(self, clock: Clock, name: Hashable, places: list[tuple[int, int]]) -> None:
        for stream, count in places:
            if clock.get(stream, 0) < count:
                self.races.append(f"{name}: not after {count} of stream {stream}, but {clock}")


class _LateFuture(Future[T]):
    """Whoever waits for it does not wait for steps."""

    def __init__(self, owner: "LateExecutor", begins: int, ends: int) -> None:
        super().__init__()
        self.owner, self.begins, self.ends = owner, begins, ends

    def result(self, timeout: float | None = None) -> T:
        self.owner.note_wait(self)
        self.owner.hurry(self)
        return super().result(PATIENCE_S if timeout is None else timeout)


class LateExecutor:
    """`ThreadPoolExecutor` of one thread; work begins and ends a drawn number of steps late."""

    def __init__(self, machine: Machine, *arguments: Any) -> None:
        self._machine = machine
        self._executor = ThreadPoolExecutor(*arguments)
        self._futures: list[_LateFuture[Any]] = []
        machine.executors.append(weakref.ref(self))

    def submit(self, work: Callable[..., T], *arguments: Any) -> Future[T]:
        machine = self._machine
        known = dict(machine.known)
        begins = machine.num_steps + machine.draw_delay()
        future: _LateFuture[T] = _LateFuture(self, begins, begins + machine.draw_delay())
        self._futures = [*(one for one in self._futures if not one.done()), future]
        self._executor.submit(_run_late, machine, known, future, work, *arguments)
        return future

    def note_wait(self, future: _LateFuture[Any]) -> None:
        self._machine.num_waits += not future.done()

    def hurry(self, last: _LateFuture[Any] | None = None) -> None:
        """Let work begin at once, up to this piece or all."""
        with self._machine.turn:
            for future in self._futures:
                future.begins = 0
                if future is last:
                    break
            self._machine.turn.notify_all()

    def finish_due(self) -> None:
        """Wait for what must have ended by now."""
        for future in self._futures:
            if future.ends <= self._machine.num_steps:
                self.hurry(future)
                wait([future], PATIENCE_S)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.hurry()
        self._executor.shutdown(wait, cancel_futures=cancel_futures)


def _run_late(
    machine: Machine,
    known: Clock,
    future: _LateFuture[T],
    work: Callable[..., T],
    *arguments: Any,
) -> None:
    _join(machine.known, known)
    with machine.turn:
        assert machine.turn.wait_for(lambda: machine.num_steps >= future.begins, PATIENCE_S)
        machine.num_pieces += 1
    try:
        future.set_result(work(*arguments))
    except BaseException as error:  # noqa: BLE001
        future.set_exception(error)
