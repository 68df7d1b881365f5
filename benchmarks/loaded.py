"""Measures how decode speed falls while other processes keep every core busy.

    python benchmarks/loaded.py MODEL.gguf --pairs 5 -o out.json

Alternates idle and loaded runs; the load is one spinning process per core. With equal shares of
the cores half the speed is in proportion.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
from pathlib import Path

from powerinfer.bench.machine import describe_machine


def _spin() -> None:
    while True:
        pass


def _decode_rate(model: Path, threads: int) -> float:
    command = [sys.executable, "-m", "powerinfer", "bench", "-m", str(model), "--json"]
    command += ["-t", str(threads), "--prefill", "", "--decode", "32"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(json.loads(done.stdout)["decode_tokens_per_s"])


def _loaded_rate(model: Path, threads: int) -> float:
    cores = range(os.cpu_count() or 1)
    burners = [multiprocessing.Process(target=_spin, daemon=True) for _ in cores]
    for burner in burners:
        burner.start()
    try:
        return _decode_rate(model, threads)
    finally:
        for burner in burners:
            burner.kill()
            burner.join()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    pairs = [
        (_decode_rate(options.model, options.threads), _loaded_rate(options.model, options.threads))
        for _ in range(options.pairs)
    ]
    share = statistics.median(loaded / idle for idle, loaded in pairs)
    print(f"{options.model.name}: loaded / idle decode speed {share:.2f} (in proportion: 0.50)")
    if options.output:
        report = {"machine": describe_machine(), "model": options.model.name, "pairs": pairs}
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
