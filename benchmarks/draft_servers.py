"""Times servers without and with drafts on the tasks of `powerinfer bench --draft`, by clients.

    python benchmarks/draft_servers.py MODEL.gguf --clients 1,4 --rounds 3 -o out.json
    python benchmarks/draft_servers.py MODEL.gguf --llama-server PATH/llama-server

In every round each side answers all tasks, as many at a time as there are clients: one server of
ours with `draft` off and auto in the request, and llama-server as it is and with `--spec-type
ngram-mod` and its defaults. Tokens a second count from the first request to the last token, with
prompts, which both kinds of servers find among those they computed before from round two on.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import httpx

from comparing.sides import ratio
from powerinfer.bench.drafts import DraftTask, read_draft_tasks
from powerinfer.bench.machine import describe_machine
from powerinfer.bench.serving.server import our_command, peer_command, running

CONTEXT = 2048
SYSTEM = {"role": "system", "content": "You are a helpful assistant."}


@dataclass(frozen=True)
class Side:
    """A server, and what a request to it has besides the messages."""

    name: str
    address: str
    body: dict[str, Any]


async def answer(client: httpx.AsyncClient, side: Side, tasks: Iterator[DraftTask]) -> int:
    """Send one task after the other; return the number of tokens of the answers."""
    num_tokens = 0
    for task in tasks:
        messages = [SYSTEM, {"role": "user", "content": task.prompt}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 256, **side.body}
        found = await client.post(f"{side.address}/v1/chat/completions", json=body)
        found.raise_for_status()
        num_tokens += found.json()["usage"]["completion_tokens"]
    return num_tokens


async def rate(side: Side, tasks: list[DraftTask], clients: int) -> float:
    """Tokens a second of all clients together."""
    queue = iter(tasks)
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        started = time.perf_counter()
        counts = await asyncio.gather(*(answer(client, side, queue) for _ in range(clients)))
        return sum(counts) / (time.perf_counter() - started)


def sides(options: argparse.Namespace, stack: ExitStack) -> list[Side]:
    """Start the servers."""
    most = max(options.clients)
    ours = our_command(options.model, most, CONTEXT, options.threads, ())
    address = stack.enter_context(running(ours)).address
    found = [Side(draft, address, {"draft": draft}) for draft in ("off", "auto")]
    if options.llama_server:
        peer = peer_command(options.llama_server, options.model, most, CONTEXT, options.threads)
        for name, flags in (("llama.cpp", []), ("ngram-mod", ["--spec-type", "ngram-mod"])):
            found.append(Side(name, stack.enter_context(running([*peer, *flags])).address, {}))
    return found


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the rounds; return a row for each kind of task and number of clients."""
    tasks = read_draft_tasks()
    kinds = {
        "copying": [task for task in tasks if task.kind != "prose"],
        "prose": [task for task in tasks if task.kind == "prose"],
    }
    cases = [(kind, clients) for clients in options.clients for kind in kinds]
    with ExitStack() as stack:
        found = sides(options, stack)
        rates = {case: {side.name: list[float]() for side in found} for case in cases}
        for number in range(options.rounds + 1):
            for (kind, clients), row in rates.items():
                for side in found:
                    speed = asyncio.run(rate(side, kinds[kind], clients))
                    # The first round computes the prompts and records the steps.
                    if number:
                        row[side.name].append(speed)
    return [
        {"kind": kind, "clients": clients, "tokens_per_s": row, **_gains(row)}
        for (kind, clients), row in rates.items()
    ]


def _gains(row: dict[str, list[float]]) -> dict[str, Any]:
    gains = {"ours": ratio(row["auto"], row["off"])}
    if "ngram-mod" in row:
        gains["llama.cpp"] = ratio(row["ngram-mod"], row["llama.cpp"])
        gains["ours over llama.cpp"] = ratio(row["auto"], row["ngram-mod"])
    return {"gains": gains}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a chat model")
    parser.add_argument("--llama-server", type=Path, help="program of llama.cpp")
    parser.add_argument("--clients", default="1,4", help="comma-separated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.clients = [int(each) for each in options.clients.split(",")]
    return options


def main() -> None:
    """Command line."""
    options = _options()
    rows = compare(options)
    for row in rows:
        speeds = (
            f"{name} {statistics.median(found):.1f}" for name, found in row["tokens_per_s"].items()
        )
        gains = (
            f"{name} {gain['ratio']:.2f} ({gain['ratio_min']:.2f}-{gain['ratio_max']:.2f})"
            for name, gain in row["gains"].items()
        )
        print(f"{row['kind']}, {row['clients']} clients: {', '.join(speeds)} tokens/s")
        print(f"    gains: {', '.join(gains)}")
    if options.output:
        report = {"machine": describe_machine(), "date": f"{date.today()}", "results": rows}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
