"""Copies to the device in the background, on a separate stream that a separate thread fills.

A copy first gathers rows in host memory, which takes about as long as the transfer itself; on a
thread neither delays the current step. On torch's cpu device everything happens immediately.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from powerinfer.errors import PowerInferError
from powerinfer.ops.gpu.memory import Arena, DeviceMemory, naming_kernel_failure
from powerinfer.values import ByteArray

__all__ = ["Chunk", "ChunkStream", "Mark", "Staging", "Upload", "Uploader"]

_T = TypeVar("_T")


class Staging:
    """Two alternating pieces of page-locked memory in which rows are gathered to be sent.

    For one thread at a time.
    """

    def __init__(self, memory: DeviceMemory, num_bytes: int) -> None:
        """Allocate nothing yet; `num_bytes` is the size of a piece unless a row needs more."""
        self.num_bytes = num_bytes
        self._memory = memory
        self._pieces: list[Tensor | None] = [None, None]
        self._sent: list[torch.cuda.Event | None] = [None, None]
        self._next = 0

    def room(self, num_rows: int, row_bytes: int) -> ByteArray:
        """Wait for free room, u8[num_rows, row_bytes]."""
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
        """Note that all copies from the last room are queued on torch's current stream."""
        if self._memory.is_cuda:
            event = torch.cuda.Event()
            event.record()
            self._sent[self._next] = event


class Mark:
    """A position in the device's stream of work."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self.event = event

    def is_reached(self) -> bool:
        """True once the device has reached it."""
        return self.event is None or bool(self.event.query())


class Upload:
    """One piece of background work; its methods raise the PowerInferError that it raised."""

    def __init__(self, future: "Future[Mark]") -> None:
        self._future = future

    def is_done(self) -> bool:
        """True once the numbers have arrived."""
        return self._future.done() and self._future.result().is_reached()

    def join(self) -> None:
        """Make work that the caller queues from now on wait for the numbers."""
        event = self._future.result().event
        if event is not None:
            torch.cuda.current_stream().wait_event(event)


class Uploader:
    """Does background work, one piece after the other."""

    def __init__(self, device: torch.device) -> None:
        """Create the stream on a `torch.device` with its number, or torch's cpu device."""
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None
        self._thread = ThreadPoolExecutor(1, "uploads") if self._is_cuda else None

    def mark(self) -> Mark:
        """Mark the current position in the caller's stream."""
        if not self._is_cuda:
            return Mark(None)
        event = torch.cuda.Event()
        event.record()
        return Mark(event)

    def submit(self, work: Callable[[], None], after: Mark | None = None) -> Upload:
        """Start a piece of work.

        Args:
            work: writes to tensors of the device, on torch's current stream. The `Upload` raises
                its errors.
            after: position that the device must have passed before it writes.
        """
        if self._thread is not None:
            return Upload(self._thread.submit(self._work, work, after))
        future: Future[Mark] = Future()
        try:
            with naming_kernel_failure():
                work()
        except (PowerInferError, RuntimeError) as error:
            future.set_exception(error)
        else:
            future.set_result(Mark(None))
        return Upload(future)

    def close(self) -> None:
        """Wait for the current work; nothing more can be submitted.

        Release the memory that it writes to only afterwards.
        """
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
        if self._stream is not None:
            self._stream.synchronize()

    def _work(self, work: Callable[[], None], after: Mark | None) -> Mark:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if self._stream is not None and after is not None and after.event is not None:
                self._stream.wait_event(after.event)
            with naming_kernel_failure():
                work()
            return self.mark()


@dataclass(frozen=True, slots=True, eq=False)
class Chunk(Generic[_T]):
    """Weights that are sent when they are needed.

    Attributes:
        place: cuts their arrays out of a buffer.
        fill: copies the weights into the arrays, in the background.
    """

    place: Callable[[Arena], _T]
    fill: Callable[[_T], None]


class ChunkStream:
    """Sends chunks through two alternating buffers, each while the device works with the other.

    Attributes:
        uploaders: one for each buffer, as gathering rows takes a thread as long as queueing copies.
    """

    def __init__(self, device: torch.device, memory: Tensor) -> None:
        """Take the memory of the buffers, u8[2, num_bytes] on the device."""
        self.uploaders = Uploader(device), Uploader(device)
        self._memory = memory
        self._current = 0
        self._coming: tuple[Chunk[Any], Any, Upload] | None = None

    @property
    def buffer_bytes(self) -> int:
        """Size of a buffer."""
        return int(self._memory.shape[1])

    def each(self, chunks: Sequence[Chunk[_T]], then: Chunk[Any] | None = None) -> Iterator[_T]:
        """Yield the arrays of chunks; work with them must be queued before the next is asked for.

        `then` is probably the first chunk of the next call: it is sent early.
        """
        for chunk, following in zip(chunks, [*chunks[1:], then], strict=True):
            if self._coming is None or self._coming[0] is not chunk:
                self._coming = self._send(chunk)
            _, arrays, upload = self._coming
            self._current = 1 - self._current
            # All work on the other buffer has been queued by now. Not after the wait below, in
            # which the thread of uploads would have nothing to do.
            self._coming = None if following is None else self._send(following)
            upload.join()
            yield arrays

    def stop(self) -> None:
        """Wait for a chunk that was sent early, which is not needed after all."""
        coming, self._coming = self._coming, None
        if coming is not None:
            with suppress(PowerInferError, RuntimeError):
                coming[2].join()

    def _send(self, chunk: Chunk[_T]) -> tuple[Chunk[_T], _T, Upload]:
        number = 1 - self._current
        arrays, uploader = chunk.place(Arena(self._memory[number])), self.uploaders[number]
        upload = uploader.submit(partial(chunk.fill, arrays), uploader.mark())
        return chunk, arrays, upload
