"""Measures time from process start to the first token, and peak memory, for a one-token prompt.

    python benchmarks/startup.py MODEL.gguf [...] --runs 5 -o out.json

The file should be in the page cache (one uncounted run goes first). Peak memory is the largest
resident set of the process, mapped file pages included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from powerinfer.bench.machine import describe_machine


def _once(model: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, "-m", "powerinfer", "run", "-m", str(model), "-p", "a", "-n", "2"]
    command += ["-t", str(threads), "--temp", "0", "--no-display-prompt", "--ignore-eos"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if process.stdout is None or not process.stdout.read(1):
        raise SystemExit(f"error: {' '.join(command)} printed nothing")
    first_token_s = time.perf_counter() - start
    process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"error: {' '.join(command)} failed")
    process.returncode = 0
    return {"first_token_s": first_token_s, "peak_bytes": usage.ru_maxrss * 1024}


def measure(model: Path, runs: int, threads: int) -> dict[str, Any]:
    """Median over `runs` after one warm-up."""
    _once(model, threads)
    samples = [_once(model, threads) for _ in range(runs)]
    size = model.stat().st_size
    peak = statistics.median(sample["peak_bytes"] for sample in samples)
    return {
        "model": model.name,
        "file_bytes": size,
        "first_token_s": statistics.median(sample["first_token_s"] for sample in samples),
        "peak_bytes": peak,
        "peak_over_file_mb": (peak - size) / 1e6,
        "samples": samples,
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    results = []
    for model in options.models:
        result = measure(model, options.runs, options.threads)
        results.append(result)
        print(
            f"{result['model']:28} first token {result['first_token_s']:.2f} s"
            f"  peak {result['peak_bytes'] / 1e9:.2f} GB"
            f"  (file {result['peak_over_file_mb']:+.0f} MB)"
        )
    if options.output:
        report = {"machine": describe_machine(), "results": results}
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
