"""Copies to the device beside its work: a stream of their own, queued by a thread of its own.

A copy first gathers rows in host memory, which takes the host as long as the copy takes the bus;
on a thread neither delays the step under way. On torch's cpu device everything happens at once.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from powerinfer.errors import PowerInferError
from powerinfer.ops.gpu.memory import DeviceMemory
from powerinfer.values import ByteArray

__all__ = ["Mark", "Staging", "Upload", "Uploader"]


class Staging:
    """Page-locked memory that rows are gathered in on their way to the device, two pieces in turn.

    For one thread at a time.
    """

    def __init__(self, memory: DeviceMemory, num_bytes: int) -> None:
        """Reserve nothing yet.

        Args:
            memory: of the device.
            num_bytes: of a piece; a larger one is made where a single row needs it.
        """
        self.num_bytes = num_bytes
        self._memory = memory
        self._pieces: list[Tensor | None] = [None, None]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._next = 0

    def room(self, num_rows: int, row_bytes: int) -> ByteArray:
        """u8[num_rows, row_bytes] that nothing on its way needs any more; waits for that.

        Raises:
            OutOfDeviceMemoryError: there is no more page-locked memory.
        """
        self._next = 1 - self._next
        wanted = num_rows * row_bytes
        sent, piece = self._sent[self._next], self._pieces[self._next]
        if sent is not None:
            sent.synchronize()
        if piece is None or piece.numel() < wanted:
            size = max(wanted, self.num_bytes)
            piece = self._pieces[self._next] = self._memory.pinned((size,), torch.uint8)
        room: ByteArray = piece[:wanted].numpy().reshape(num_rows, row_bytes)
        return room

    def mark_sent(self) -> None:
        """Copies from the room given last have been queued on torch's current stream."""
        if self._memory.is_cuda:
            event = torch.cuda.Event()
            event.record()
            self._sent[self._next] = event


class Mark:
    """A place in the device's stream of work."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        """Take a recorded event, or None where work is done when it is queued."""
        self.event = event

    def is_reached(self) -> bool:
        """Whether the device has got there."""
        return self.event is None or bool(self.event.query())


class Upload:
    """One piece of work on the side."""

    def __init__(self, future: "Future[Mark]") -> None:
        """Take what will give the place in the side stream behind the work."""
        self._future = future

    def is_done(self) -> bool:
        """Whether the numbers have arrived.

        Raises:
            PowerInferError: the work failed; what it raised.
        """
        return self._future.done() and self._future.result().is_reached()

    def join(self) -> None:
        """Let what the caller queues from now on wait for the numbers.

        Raises:
            PowerInferError: the work failed; what it raised.
        """
        event = self._future.result().event
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


class Uploader:
    """Does work on the side, one piece after the other."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream.

        Args:
            device: `torch.device` with its number, or torch's cpu device.
        """
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None
        self._thread = ThreadPoolExecutor(1, "uploads") if self._is_cuda else None

    def mark(self) -> Mark:
        """The place in the caller's stream that its work has been queued up to."""
        if not self._is_cuda:
            return Mark(None)
        event = torch.cuda.Event()
        event.record()
        return Mark(event)

    def submit(self, work: Callable[[], None], after: Mark | None = None) -> Upload:
        """Begin a piece of work.

        Args:
            work: writes to tensors of the device, on torch's current stream. What it raises, the
                `Upload` raises.
            after: place in the device's work that must be behind it before it writes.
        """
        if self._thread is not None:
            return Upload(self._thread.submit(self._work, work, after))
        future: Future[Mark] = Future()
        try:
            work()
        except (PowerInferError, RuntimeError) as error:
            future.set_exception(error)
        else:
            future.set_result(Mark(None))
        return Upload(future)

    def close(self) -> None:
        """Wait for the end of the work under way; nothing more can be submitted.

        What it writes to must not be given back before: its memory would soon hold something else.
        """
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        if self._stream is not None:
            self._stream.synchronize()

    def _work(self, work: Callable[[], None], after: Mark | None) -> Mark:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if self._stream is not None and after is not None and after.event is not None:
                self._stream.wait_event(after.event)
            work()
            return self.mark()
