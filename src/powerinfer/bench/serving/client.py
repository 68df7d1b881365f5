"""A streamed completion of random tokens, timed token by token.

Clients share the cores with the server, so answers are only recorded as they arrive and parsed at
the end.
"""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from powerinfer.errors import PowerInferError

__all__ = ["Stream", "complete", "complete_all", "random_prompt"]

_LONGEST_S = 600.0


@dataclass(slots=True)
class Stream:
    """A streamed answer as one client saw it.

    Attributes:
        started_s: time of the request, by `time.perf_counter`.
    """

    started_s: float
    arrivals_s: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def first_token_s(self) -> float:
        """Seconds from the request to the first piece."""
        return self.arrivals_s[0] - self.started_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between pieces."""
        times = self.arrivals_s
        return [later - earlier for earlier, later in itertools.pairwise(times)]


async def complete(
    address: str,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    model: str | None = None,
    stop: asyncio.Event | None = None,
) -> Stream:
    """Request a greedy completion and read it to the end, or until the first event after `stop`."""
    started = time.perf_counter()
    try:
        async with asyncio.timeout(_LONGEST_S):
            request = _request(address, prompt, max_tokens, model)
            received = await _receive(address, request, stop)
    except (OSError, TimeoutError) as error:
        raise PowerInferError(f"{address} did not answer completely: {error!r}") from error
    return _read(address, started, received, is_whole=stop is None)


async def _receive(
    address: str, request: bytes, stop: asyncio.Event | None
) -> list[tuple[float, bytes]]:
    """Read until the server closes the connection; return chunks with their arrival times."""
    where, loop = urlsplit(address), asyncio.get_running_loop()
    receiver = _Receiver(request, stop, loop.create_future())
    host, port = where.hostname or "127.0.0.1", where.port or 80
    transport, _ = await loop.create_connection(lambda: receiver, host, port)
    try:
        await receiver.over
    finally:
        transport.close()
    return receiver.received


class _Receiver(asyncio.Protocol):
    """Notes what arrives; through a `StreamReader` each token would wake a task, too.

    Attributes:
        received: chunks with their arrival times.
        over: done when the connection has ended.
    """

    def __init__(
        self, request: bytes, stop: asyncio.Event | None, over: asyncio.Future[None]
    ) -> None:
        self._request = request
        self._stop = stop
        self.over = over
        self.received: list[tuple[float, bytes]] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self.received.append((time.perf_counter(), data))
        if self._stop is not None and self._stop.is_set():
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.over.done():
            return
        if exc is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(exc)


def _request(address: str, prompt: Sequence[int], max_tokens: int, model: str | None) -> bytes:
    body = json.dumps(
        {
            **({} if model is None else {"model": model}),
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    lines = (
        "POST /v1/completions HTTP/1.1",
        f"Host: {urlsplit(address).netloc}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def _read(
    address: str, started: float, received: Sequence[tuple[float, bytes]], *, is_whole: bool
) -> Stream:
    """Parse the events of an answer, each with the arrival time of its last byte."""
    seen, rest, is_over = Stream(started), b"", False
    for now, data in received:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                _take(address, json.loads(line[6:]), now, seen)
            is_over |= line.startswith(b"data: [DONE]")
    if (is_whole and not is_over) or not seen.arrivals_s:
        answer = b"".join(data for _, data in received)[:300].decode(errors="replace")
        raise PowerInferError(f"{address} did not answer completely: {answer!r}")
    return seen


def _take(address: str, event: dict[str, object], now: float, seen: Stream) -> None:
    if "error" in event:
        raise PowerInferError(f"{address} ended a stream: {event['error']}")
    choices = event.get("choices")
    if isinstance(choices, list) and any(choice.get("text") for choice in choices):
        seen.arrivals_s.append(now)
    usage = event.get("usage")
    if isinstance(usage, dict):
        seen.num_tokens = int(usage["completion_tokens"])


def complete_all(
    address: str, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[float, list[Stream]]:
    """Complete all prompts at once; return the seconds to the last byte, and the streams."""

    async def run() -> tuple[float, list[Stream]]:
        started = time.perf_counter()
        streams = await asyncio.gather(*(complete(address, each, max_tokens) for each in prompts))
        return max(stream.arrivals_s[-1] for stream in streams) - started, list(streams)

    return asyncio.run(run())


def random_prompt(seed: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """Draw token ids that depend only on the seed, skipping control tokens at the start."""
    import numpy as np

    first = min(300, vocab_size // 2)
    return [int(i) for i in np.random.default_rng(seed).integers(first, vocab_size, num_tokens)]
