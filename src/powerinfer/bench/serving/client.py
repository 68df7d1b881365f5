"""One streamed completion of random tokens, timed token by token."""

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from powerinfer.errors import PowerInferError

__all__ = ["Stream", "complete", "complete_all", "random_prompt"]

_TIMEOUT = httpx.Timeout(600.0)


@dataclass(slots=True)
class Stream:
    """What one client saw.

    Attributes:
        started_s: when it asked, by `time.perf_counter`.
        arrivals_s: when pieces of its text came, likewise.
        num_tokens: generated, as the server counts them.
    """

    started_s: float
    arrivals_s: list[float] = field(default_factory=list)
    num_tokens: int = 0

    @property
    def first_token_s(self) -> float:
        """Seconds to the first piece."""
        return self.arrivals_s[0] - self.started_s

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between pieces."""
        times = self.arrivals_s
        return [later - earlier for earlier, later in itertools.pairwise(times)]


async def complete(
    client: httpx.AsyncClient,
    prompt: Sequence[int],
    max_tokens: int,
    *,
    stop: asyncio.Event | None = None,
) -> Stream:
    """Ask for a greedy completion and read it to its end.

    Args:
        client: with the server's address.
        prompt: token ids.
        max_tokens: as many are generated.
        stop: set once the text is not wanted any more.

    Raises:
        PowerInferError: the server answered with an error, or not to the end.
    """
    body = {
        "prompt": list(prompt),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    seen = Stream(time.perf_counter())
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            if answer.status_code != httpx.codes.OK:
                text = (await answer.aread()).decode(errors="replace")[:300]
                raise PowerInferError(f"{client.base_url} answered {answer.status_code}: {text}")
            async for line in answer.aiter_lines():
                _take(line, seen)
                if stop is not None and stop.is_set():
                    return seen
    except httpx.HTTPError as error:
        raise PowerInferError(f"{client.base_url} did not answer to the end: {error!r}") from error
    return seen


def _take(line: str, seen: Stream) -> None:
    """One line of server-sent events."""
    if not line.startswith("data:") or line.endswith("[DONE]"):
        return
    event = json.loads(line[5:])
    if "error" in event:
        raise PowerInferError(f"the server ended a stream: {event['error']}")
    if any(choice.get("text") for choice in event.get("choices", ())):
        seen.arrivals_s.append(time.perf_counter())
    if usage := event.get("usage"):
        seen.num_tokens = int(usage["completion_tokens"])


def complete_all(
    address: str, prompts: Sequence[Sequence[int]], max_tokens: int
) -> tuple[float, list[Stream]]:
    """All prompts at once, a client each.

    Returns:
        Seconds from the first request to the end of the last answer, and what clients saw.
    """

    async def run() -> tuple[float, list[Stream]]:
        async with new_client(address) as client:
            started = time.perf_counter()
            tasks = [complete(client, prompt, max_tokens) for prompt in prompts]
            streams = await asyncio.gather(*tasks)
            return time.perf_counter() - started, list(streams)

    return asyncio.run(run())


def new_client(address: str) -> httpx.AsyncClient:
    """A client with as many connections as are wanted, that no proxy is asked for."""
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=address, timeout=_TIMEOUT, limits=limits, trust_env=False)


def random_prompt(seed: Sequence[int], num_tokens: int, vocab_size: int) -> list[int]:
    """Token ids that depend on nothing but the seed; the first ids are control tokens."""
    import numpy as np

    first = min(300, vocab_size // 2)
    return [int(i) for i in np.random.default_rng(seed).integers(first, vocab_size, num_tokens)]
