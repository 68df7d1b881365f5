"""Times two models that one server computes side by side, each against its speed alone.

    python benchmarks/two_models.py A.gguf B.gguf --rounds 4 -o out.json

Every round has three windows in turns: clients of A, clients of B, and of both. A client sends
prompts of random tokens one after the other and reads each answer; tokens count that arrive within
the window. The server has loaded both models before, and keeps them.
"""

import argparse
import asyncio
import json
import statistics
import time
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import httpx

from comparing.sides import ratio
from powerinfer.bench.machine import describe_machine
from powerinfer.bench.serving.client import complete, random_prompt
from powerinfer.bench.serving.server import our_command, running
from powerinfer.errors import PowerInferError
from powerinfer.gguf import open_gguf

CONTEXT = 512


class Load:
    """Prompts of one model, all of them different."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.name = path.name.removesuffix(".gguf")
        tokens: Any = open_gguf(path).metadata["tokenizer.ggml.tokens"]
        self._vocab_size = len(tokens)
        self._options = options
        self._number = 0

    async def run(self, address: str, until: float) -> tuple[int, float]:
        """Send prompts until then; return tokens that arrived and the largest gap in seconds."""
        options, stop = self._options, asyncio.Event()
        num_tokens, largest = 0, 0.0
        asyncio.get_running_loop().call_at(until, stop.set)
        while time.monotonic() < until:
            self._number += 1
            prompt = random_prompt((self._number,), options.prompt_tokens, self._vocab_size)
            # It ends with an error if the window ends before its first token.
            with suppress(PowerInferError):
                stream = await complete(
                    address, prompt, options.max_tokens, model=self.name, stop=stop
                )
                num_tokens += len(stream.arrivals_s)
                largest = max([largest, *stream.gaps_s])
        return num_tokens, largest


async def window(address: str, loads: list[Load], seconds: float) -> list[tuple[float, float]]:
    """Tokens a second and the largest gap of each load."""
    started = time.monotonic()
    found = await asyncio.gather(*(load.run(address, started + seconds) for load in loads))
    return [(num_tokens / seconds, largest) for num_tokens, largest in found]


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Run the rounds, and summarise."""
    loads = [Load(path, options) for path in options.models]
    flags = ("-m", str(options.models[0]), "--keep-alive", "-1")
    command = our_command(options.models[1], 4, CONTEXT, options.threads, flags)
    rows: list[dict[str, list[float]]] = [{"alone": [], "beside": [], "gap": []} for _ in loads]
    with running(command) as server:
        for load in loads:
            body = {"model": load.name, "prompt": "a", "max_tokens": 2}
            url = f"{server.address}/v1/completions"
            httpx.post(url, json=body, timeout=120, trust_env=False).raise_for_status()
        for _ in range(options.rounds):
            for load, row in zip(loads, rows, strict=True):
                ((rate, _),) = asyncio.run(window(server.address, [load], options.seconds))
                row["alone"].append(rate)
            found = asyncio.run(window(server.address, loads, options.seconds))
            for row, (rate, gap) in zip(rows, found, strict=True):
                row["beside"].append(rate)
                row["gap"].append(gap)
    return {
        load.name: row | {"kept": ratio(row["beside"], row["alone"])}
        for load, row in zip(loads, rows, strict=True)
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window")
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=128, help="of each answer")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def main() -> None:
    """Command line."""
    options = _options()
    result = compare(options)
    for name, row in result.items():
        alone, beside, gap = (statistics.median(row[key]) for key in ("alone", "beside", "gap"))
        kept = row["kept"]
        print(
            f"{name}: {alone:.1f} tokens/s alone, {beside:.1f} beside the other, "
            f"{kept['ratio']:.2f} ({kept['ratio_min']:.2f}-{kept['ratio_max']:.2f}); largest gap "
            f"{1e3 * gap:.0f} ms"
        )
    if options.output:
        report = {
            "machine": describe_machine(),
            "date": f"{date.today()}",
            "threads": options.threads,
            "prompt_tokens": options.prompt_tokens,
            "max_tokens": options.max_tokens,
            "results": result,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
