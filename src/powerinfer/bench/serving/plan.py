"""Measurements of `powerinfer bench serve`, from server commands to figures."""

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from powerinfer.bench.machine import describe_machine
from powerinfer.bench.serving.client import Stream, complete, random_prompt
from powerinfer.bench.serving.rounds import Load, Progress, byte_bound, measure_sides, ratio
from powerinfer.bench.serving.server import (
    missing_instruction_sets,
    our_command,
    peer_command,
    running,
    system_info,
)
from powerinfer.errors import PowerInferError
from powerinfer.gguf import GGUFFile, open_gguf

__all__ = ["PEER", "ServingPlan", "measure_serving"]

_LONG_PROMPT = 1500
_SCENARIO_CONTEXT = 2048
_NUM_STREAMS = 3
_CHAT, _TURN = 1000, 40
_FEW = 4
PEER = "llama-server"
_SCENARIO_PARALLEL = 4
_TELLING = "4"


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """Servers and load to measure.

    Attributes:
        settings: sparsity settings, a server each; empty for the model's default alone.
        plain: file served by the peer; None for `model`.
        has_scenarios: measure a long prompt during streams, a second turn, a single stream.
    """

    model: Path
    settings: tuple[str, ...]
    peer: Path | None
    plain: Path | None
    clients: tuple[int, ...]
    prompt_tokens: int
    max_tokens: int
    repeats: int
    context: int
    threads: int
    has_scenarios: bool

    @property
    def kinds(self) -> tuple[str, ...]:
        """The settings, or `default`."""
        return self.settings or ("default",)

    def command(self, kind: str, parallel: int, context: int) -> list[str]:
        """Command of our server with one setting."""
        options = () if kind == "default" else ("--sparsity", kind)
        return our_command(self.model, parallel, context, self.threads, options)

    def commands(self, parallel: int) -> dict[str, list[str]]:
        """Commands of all servers by name."""
        found = {kind: self.command(kind, parallel, self.context) for kind in self.kinds}
        if self.peer is not None:
            plain = self.plain or self.model
            found[PEER] = peer_command(self.peer, plain, parallel, self.context, self.threads)
        return found


def measure_serving(plan: ServingPlan, progress: Progress) -> dict[str, Any]:
    """Run the plan and return a JSON report."""
    file = open_gguf(plan.model)
    vocab_size = _vocab_size(file)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "model": plan.model.name,
        "plain": None if plan.plain is None else plan.plain.name,
        "threads": plan.threads,
        "prompt_tokens": plan.prompt_tokens,
        "max_tokens": plan.max_tokens,
        "clients": {},
    }
    if plan.peer is not None:
        info = _peer_system_info(plan.peer, plan)
        report |= {"peer_system_info": info, "peer_lacks": missing_instruction_sets(info)}
    for index, number in enumerate(plan.clients):
        load = Load(number, plan.prompt_tokens, plan.max_tokens, plan.repeats, vocab_size)

        def advance(done: int, total: int, before: int = index) -> None:
            progress(before * total + done, len(plan.clients) * total)

        sides = measure_sides(plan.commands(number), load, advance)
        report["clients"][str(number)] = _compared(file, sides)
    if plan.has_scenarios:
        report["scenarios"] = {kind: _scenarios(plan, kind, vocab_size) for kind in plan.kinds}
    return report


def _peer_system_info(peer: Path, plan: ServingPlan) -> str:
    """Read the peer's build info, printed only at a verbosity too high for measurements."""
    command = peer_command(peer, plan.plain or plan.model, 1, plan.context, plan.threads)
    with running([*command, "--verbosity", _TELLING]) as server:
        return system_info(server)


def _vocab_size(file: GGUFFile) -> int:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise PowerInferError(f"{file.path} has no vocabulary to draw prompts from")
    return len(tokens)


def _compared(file: GGUFFile, sides: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Add ratios to the peer and to our dense server, and the byte bound, to every side."""
    out = {}
    for name, side in sides.items():
        against = {
            other: ratio(side["rounds_tokens_per_s"], sides[other]["rounds_tokens_per_s"])
            for other in (PEER, "off")
            if other in sides and other != name and name != PEER
        }
        bound = None if name == PEER else byte_bound(file, name, side["union_share"])
        out[name] = side | {"against": against, "byte_bound": bound}
    return out


def _scenarios(plan: ServingPlan, kind: str, vocab_size: int) -> dict[str, Any]:
    command = plan.command(kind, _SCENARIO_PARALLEL, _SCENARIO_CONTEXT)
    with running(command) as server:
        measuring = _measure_scenarios(server.address, vocab_size, plan.max_tokens)
        found = asyncio.run(measuring)
    found["bench_tokens_per_s"] = _bench_rate(plan, kind)
    return found


def _bench_rate(plan: ServingPlan, kind: str) -> float:
    """Decode speed of one stream without a server."""
    command = [sys.executable, "-m", "powerinfer", "bench", "-m", str(plan.model), "--json"]
    command += ["-t", str(plan.threads), "--prefill", "", "--repeats", "1"]
    command += ["--decode", str(plan.max_tokens)]
    command += [] if kind == "default" else ["--sparsity", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PowerInferError(f"powerinfer bench failed: {done.stderr.strip()[-300:]}")
    return float(json.loads(done.stdout)["decode_tokens_per_s"])


async def _measure_scenarios(address: str, vocab_size: int, max_tokens: int) -> dict[str, Any]:
    """Measure latency of streams during a long prompt, and the cost of a second chat turn."""

    def prompt(number: int, length: int) -> list[int]:
        return random_prompt((7, number), length, vocab_size)

    await complete(address, prompt(0, 32), 8)
    single = await complete(address, prompt(1, 32), max_tokens)
    alone = await complete(address, prompt(2, _LONG_PROMPT), _FEW)
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
    room = _SCENARIO_CONTEXT - 64
    tasks = [
        asyncio.create_task(complete(address, prompt(10 + i, 32), room, stop=stop))
        for i in range(_NUM_STREAMS)
    ]
    await asyncio.sleep(3.0)
    long = await complete(address, prompt(20, _LONG_PROMPT), _FEW)
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
