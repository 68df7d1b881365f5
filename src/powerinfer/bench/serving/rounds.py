"""Rounds of many clients, on several servers in turns."""

import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from powerinfer.bench.serving.client import Stream, complete_all, random_prompt
from powerinfer.bench.serving.server import running
from powerinfer.bench.serving.shares import measured_shares

__all__ = ["Load", "measure_sides", "p99", "ratio"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of all clients."""

    num_clients: int
    prompt_tokens: int
    max_tokens: int
    repeats: int
    vocab_size: int

    def prompts(self, number: int, side: int) -> list[list[int]]:
        """Prompts of one round, which no server has seen before."""
        return [
            random_prompt((number, side, client), self.prompt_tokens, self.vocab_size)
            for client in range(self.num_clients)
        ]


def measure_sides(
    commands: Mapping[str, list[str]], load: Load, progress: Progress
) -> dict[str, Any]:
    """Start all servers, run the rounds on them in turns, stop them, and return the figures.

    Raises:
        PowerInferError: a server does not start or does not answer.
    """
    seen: dict[str, list[tuple[float, list[Stream]]]] = {name: [] for name in commands}
    shares: dict[str, dict[str, float | None]] = {}
    total, done = len(commands) * (load.repeats + 1), 0
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(running(line)) for name, line in commands.items()}
        for number in range(load.repeats + 1):
            for side, (name, server) in enumerate(servers.items()):
                prompts = load.prompts(number, side)
                if number == 0:
                    shares[name] = measured_shares(server.address, prompts, load.max_tokens)
                else:
                    seen[name].append(complete_all(server.address, prompts, load.max_tokens))
                done += 1
                progress(done, total)
    return {name: _summary(rounds) | shares[name] for name, rounds in seen.items()}


def _summary(rounds: Sequence[tuple[float, list[Stream]]]) -> dict[str, Any]:
    streams = [stream for _, each in rounds for stream in each]
    gaps = [gap for stream in streams for gap in stream.gaps_s]
    rates = [sum(stream.num_tokens for stream in each) / seconds for seconds, each in rounds]
    return {
        "tokens_per_s": statistics.median(rates),
        "rounds_tokens_per_s": rates,
        "first_token_s": statistics.median(stream.first_token_s for stream in streams),
        "gap_s": statistics.median(gaps) if gaps else None,
        "gap_p99_s": p99(gaps),
    }


def p99(values: Sequence[float]) -> float | None:
    """Return the 99th percentile; None for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] if ordered else None


def ratio(ours: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """Median and range of the ratio per round."""
    ratios = [a / b for a, b in zip(ours, other, strict=True)]
    return {"ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios)}
