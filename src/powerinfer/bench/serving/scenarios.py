"""Latency of streams during a long prompt, and cost of a second chat turn."""

import asyncio
import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from powerinfer.bench.serving.client import Stream, complete, random_prompt

__all__ = ["LONG_PROMPT", "SCENARIO_CONTEXT", "measure_scenarios"]

LONG_PROMPT = 1500
SCENARIO_CONTEXT = 2048
_NUM_STREAMS = 3
_CHAT, _TURN = 1000, 40
_FEW = 4


def measure_scenarios(address: str, vocab_size: int, max_tokens: int) -> dict[str, Any]:
    """Measure one server.

    Args:
        address: a server with four parallel sequences and a context of `SCENARIO_CONTEXT`.
        max_tokens: tokens of the stream measured alone.

    Raises:
        PowerInferError: the server answers with an error.
    """
    return asyncio.run(_measure(address, vocab_size, max_tokens))


async def _measure(address: str, vocab_size: int, max_tokens: int) -> dict[str, Any]:
    def prompt(number: int, length: int) -> list[int]:
        return random_prompt((7, number), length, vocab_size)

    await complete(address, prompt(0, 32), 8)
    single = await complete(address, prompt(1, 32), max_tokens)
    alone = await complete(address, prompt(2, LONG_PROMPT), _FEW)
    beside, quiet, gaps = await _long_beside_streams(address, prompt)
    first = prompt(30, _CHAT)
    fresh = await complete(address, prompt(31, _CHAT + _TURN), _FEW)
    await complete(address, first, _FEW)
    second = await complete(address, [*first, *prompt(32, _TURN)], _FEW)
    return {
        "single_tokens_per_s": (len(single.arrivals_s) - 1)
        / (single.arrivals_s[-1] - single.arrivals_s[0]),
        "long_prompt": {
            "first_token_alone_s": alone.first_token_s,
            "first_token_beside_s": beside.first_token_s,
            "streams_gap_before_s": quiet,
            "streams_largest_gap_s": max(gaps),
        },
        "second_turn": {
            "first_token_s": second.first_token_s,
            "first_token_of_fresh_prompt_s": fresh.first_token_s,
        },
    }


async def _long_beside_streams(address: str, prompt: Any) -> tuple[Stream, float, Sequence[float]]:
    """Send a long prompt while streams run.

    Returns its stream, the median gap of the others before it, and their gaps during it.
    """
    stop = asyncio.Event()
    room = SCENARIO_CONTEXT - 64
    tasks = [
        asyncio.create_task(complete(address, prompt(10 + i, 32), room, stop=stop))
        for i in range(_NUM_STREAMS)
    ]
    await asyncio.sleep(3.0)
    long = await complete(address, prompt(20, LONG_PROMPT), _FEW)
    stop.set()
    streams = await asyncio.gather(*tasks)
    begin, end = long.started_s, long.arrivals_s[0]
    quiet, beside = [], []
    for stream in streams:
        times = stream.arrivals_s
        for earlier, later in itertools.pairwise(times):
            if later < begin:
                quiet.append(later - earlier)
            elif earlier < end:
                beside.append(later - earlier)
    return long, statistics.median(quiet) if quiet else 0.0, beside or [end - begin]
