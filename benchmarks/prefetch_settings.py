"""Decoding with the default prefetch settings against those measured on this machine.

    python benchmarks/prefetch_settings.py MODEL.gguf [MODEL.gguf ...] [--decode 24] [--rounds 5]

Prints for every model the settings that its load measured (or found in the cache), and GB/s of
decoding with the default and with those, in alternating rounds, next to the fastest plain read of
the same run. A model below 1 GiB, and any on a busy machine, has no measured settings.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import cast

from powerinfer import LLM
from powerinfer.bench.read_bandwidth import PlainReader
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.prefetch_settings import READ_KINDS, PrefetchSettings


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--decode", type=int, default=24, help="steps of a round")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    for path in options.models:
        _compare(path, options.decode, options.rounds)


def _compare(path: Path, steps: int, rounds: int) -> None:
    llm = LLM(path, context_length=steps + 32, device="cpu")
    ops = cast("NativeOps", llm.loaded.model.ops)
    measured = {kind: ops.prefetch_settings(kind) for kind in READ_KINDS}
    usual = dict.fromkeys(READ_KINDS, PrefetchSettings())
    reader = PlainReader(llm.loaded.threads)
    weights = [tensor.data.reshape(-1) for tensor in llm.loaded.file.tensors.values()]
    num_bytes = sum(array.nbytes for array in weights)
    rates: dict[str, list[float]] = {"default": [], "measured": [], "plain read": []}
    _decode_s(llm, steps)
    for _ in range(rounds):
        for name, chosen in (("default", usual), ("measured", measured)):
            for kind, settings in chosen.items():
                ops.set_prefetch_settings(kind, settings)
            rates[name].append(llm.loaded.dense_bytes / _decode_s(llm, steps) / 1e9)
        rates["plain read"].append(num_bytes / reader.read_s(weights) / 1e9)
    print(f"{path.name}, {llm.loaded.threads} threads, {llm.loaded.kernels}")
    for kind, settings in measured.items():
        if settings != PrefetchSettings():
            print(f"  {kind}: {settings}")
    print(f"  plain read: {reader.settings}")
    for name, found in rates.items():
        print(
            f"  {name:10} {statistics.median(found):6.2f} GB/s ({min(found):.2f}-{max(found):.2f})"
        )
    pairs = [b / a for a, b in zip(rates["default"], rates["measured"], strict=True)]
    print(
        f"  measured / default {statistics.median(pairs):.3f} ({min(pairs):.3f}-{max(pairs):.3f})"
    )


def _decode_s(llm: LLM, steps: int) -> float:
    """Seconds of a step."""
    sequence = llm.new_sequence()
    sequence.extend(list(range(5, 13)))
    started = time.perf_counter()
    for token in range(steps):
        sequence.append(100 + token)
    return (time.perf_counter() - started) / steps


if __name__ == "__main__":
    main()
