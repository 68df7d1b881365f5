"""Rounds of many clients, on several servers in turns."""

import asyncio
import contextlib
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from powerinfer.bench.serving.client import Stream, complete, complete_all, random_prompt
from powerinfer.bench.serving.server import running
from powerinfer.gguf import GGUFFile

__all__ = ["Load", "byte_bound", "measure_sides", "p99", "ratio"]

_GAUGE = re.compile(r"^powerinfer_(active|union)_share ([0-9.eE+-]+)$", re.MULTILINE)
_FFN = (".ffn_gate.", ".ffn_up.", ".ffn_down.", ".ffn_down_t.")

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
    """Start all servers, run the rounds on them in turns, stop them, and return the figures."""
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


def measured_shares(
    address: str, prompts: Sequence[Sequence[int]], max_tokens: int
) -> dict[str, float | None]:
    """Run clients and read `active_share` and `union_share` while all decode; None if missing."""
    text = asyncio.run(_metrics_while_decoding(address, prompts, max_tokens))
    found = {name: float(value) for name, value in _GAUGE.findall(text)}
    return {f"{name}_share": found.get(name) for name in ("active", "union")}


async def _metrics_while_decoding(
    address: str, prompts: Sequence[Sequence[int]], max_tokens: int
) -> str:
    async with httpx.AsyncClient(base_url=address, trust_env=False) as client:
        tasks = [asyncio.create_task(complete(address, each, max_tokens)) for each in prompts]
        # All prompts are prefilled long before three quarters of the first answer are generated.
        first: asyncio.Task[Stream] = tasks[0]
        text = ""
        while not first.done():
            await asyncio.sleep(0.2)
            try:
                answer = await client.get("/metrics")
            except httpx.HTTPError:
                break
            if answer.status_code != httpx.codes.OK:
                break
            if "powerinfer_" in answer.text and not first.done():
                text = answer.text
        await asyncio.gather(*tasks)
        return text


def byte_bound(file: GGUFFile, kind: str, union: float | None) -> float | None:
    """Bound on the decode speedup: dense bytes per step over bytes with the firing neurons only.

    It is a bound because it ignores neurons that a predictor selects but that do not fire.

    Args:
        kind: sparsity: off, exact or mlp; None for others, whose predictors are not in files.
    """
    if kind == "off":
        return 1.0
    if union is None or kind not in ("exact", "mlp"):
        return None
    sizes = {"ffn": 0, "gate": 0, "predictor": 0, "always": 0}
    skipped = "token_embd.weight" if "output.weight" in file.tensors else ""
    for name, tensor in file.tensors.items():
        if name == skipped or name.startswith("position_embd"):
            continue
        if ".fc1." in name or ".fc2." in name:
            role = "predictor"
        elif kind == "exact" and ".ffn_gate." in name:
            role = "gate"
        else:
            role = "ffn" if any(part in name for part in _FFN) else "always"
        sizes[role] += tensor.num_bytes
    dense = sizes["always"] + sizes["gate"] + sizes["ffn"]
    predictor = sizes["predictor"] if kind == "mlp" else 0
    return dense / (sizes["always"] + sizes["gate"] + predictor + union * sizes["ffn"])
