r"""Measures what a step of n tokens of n sequences costs, in times of a step of one.

    python benchmarks/step_rows.py MODEL.gguf --rows 1,2,4,8,16,32 --rounds 5 -o out.json
    python benchmarks/step_rows.py MODEL.gguf --kernels avx2 --sparsity off

Every round times all numbers of rows in turns and its own step of one token first; a ratio is taken
within its round, so that a drifting machine spoils none. Prints medians and range.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer import LLM
from powerinfer.bench.machine import describe_machine
from powerinfer.kvcache.kv_cache import BLOCK_SIZE, KVCache
from powerinfer.models.model import Model

# Positions of every sequence before the first timed step.
PREFIX = 16


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--rows", default="1,2,4,8,16,32", help="comma-separated")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="timed steps per round, of each")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kernels", help="instruction set, default the best")
    parser.add_argument("--sparsity", default="off")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


class Steps:
    """Steps of one model over sequences that all have the same length."""

    def __init__(self, model: Model, most_rows: int, num_steps: int) -> None:
        self._model = model
        self._random = np.random.default_rng(5)
        blocks = -(-(PREFIX + num_steps + 1) // BLOCK_SIZE)
        self._cache: KVCache = model.new_cache(most_rows * blocks * BLOCK_SIZE)
        self._num_sequences = most_rows
        self._num_steps = num_steps

    def fill(self) -> None:
        """Give every sequence its first positions, anew."""
        for sequence in range(self._num_sequences):
            self._cache.truncate(sequence, 0)
        for position in range(PREFIX):
            self._step(self._num_sequences, position)

    def seconds(self, rows: int) -> float:
        """Median time of a step of this many sequences; every step overwrites the same places."""
        times = []
        for i in range(self._num_steps + 1):
            started = time.perf_counter()
            self._step(rows, PREFIX + i)
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])

    def _step(self, rows: int, position: int) -> None:
        ids = self._random.integers(300, self._model.config.vocab_size, rows)
        parts = [(i, [int(token)], position) for i, token in enumerate(ids)]
        self._model.forward(self._cache.batch(parts, [False] * rows), self._cache)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Load the model and time it."""
    # The table also says how long a step of one takes.
    numbers = sorted({1, *(int(number) for number in options.rows.split(","))})
    llm = LLM(
        options.model,
        threads=options.threads,
        kernels=options.kernels,
        sparsity=options.sparsity,
    )
    steps = Steps(llm.loaded.model, max(numbers), options.steps)
    steps.fill()
    rounds = []
    for _ in range(options.rounds):
        one = steps.seconds(1)
        rounds.append({"one_s": one, "s": {str(n): steps.seconds(n) for n in numbers}})
    return {
        "model": options.model.name,
        "kernels": llm.loaded.kernels,
        "sparsity": options.sparsity,
        "threads": options.threads,
        "steps": {str(n): _summary(rounds, str(n)) for n in numbers},
        "rounds": rounds,
    }


def _summary(rounds: list[dict[str, Any]], number: str) -> dict[str, float]:
    ratios = [each["s"][number] / each["one_s"] for each in rounds]
    return {
        "ms": statistics.median(each["s"][number] for each in rounds) * 1e3,
        "of_one": statistics.median(ratios),
        "of_one_min": min(ratios),
        "of_one_max": max(ratios),
    }


def main() -> None:
    """Command line."""
    options = _options()
    result = measure(options)
    for number, row in result["steps"].items():
        print(
            f"{result['model']:28} {result['kernels']:8} {result['sparsity']:6} rows {number:>3}"
            f"  {row['ms']:8.2f} ms  {row['of_one']:.2f} of one"
            f" ({row['of_one_min']:.2f}-{row['of_one_max']:.2f})"
        )
    if options.output:
        report = {"machine": describe_machine(), "results": [result]}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
