"""Compares powerinfer with llama.cpp on the same files, in alternating runs (A B A B ...).

    python benchmarks/compare.py MODEL.gguf --peer-python PEER/bin/python --pairs 5 -o out.json

The peer's Python has llama-cpp-python built natively. Each run is a process of its own; the ratio
is taken pair by pair, so a comparison holds while a shared machine's speed drifts. Prints medians,
spread, bytes and GB/s; `-o` writes every run as JSON with machine and commit.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from powerinfer.bench.machine import describe_machine

WORKER = Path(__file__).parent / "peers" / "llama_cpp_worker.py"
Run = dict[str, Any]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prefill", default="128,512", help="prompt lengths, comma-separated")
    parser.add_argument("--decode", type=int, default=32, help="decode steps per run")
    parser.add_argument("--note", default="", help="remark stored with the results")
    parser.add_argument("-o", "--output", type=Path)
    return parser.parse_args()


def _run(command: list[str]) -> Run:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)}: {done.stderr.strip()[-500:]}")
    result: Run = json.loads(done.stdout)
    return result


def _ours(model: Path, options: argparse.Namespace) -> Run:
    command = [sys.executable, "-m", "powerinfer", "bench", "-m", str(model), "--json"]
    command += ["-t", str(options.threads), "--prefill", options.prefill, "--repeats", "1"]
    return _run([*command, "--decode", str(options.decode)])


def _peer(model: Path, options: argparse.Namespace) -> Run:
    command = [options.peer_python, str(WORKER), str(model), "--threads", str(options.threads)]
    command += ["--decode", str(options.decode), "--prefill", *options.prefill.split(",")]
    return _run(command)


def _rates(run: Run) -> dict[str, float]:
    """Tokens/s of one run by what was timed: prefill lengths and decode."""
    rates = {f"prefill {n}": float(v) for n, v in run["prefill_tokens_per_s"].items()}
    return rates | {"decode": float(run["decode_tokens_per_s"])}


def compare(model: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run the pairs for one model and summarise."""
    pairs = []
    for number in range(options.pairs):
        pairs.append({"ours": _ours(model, options), "peer": _peer(model, options)})
        print(f"{model.name}: pair {number + 1}/{options.pairs}", file=sys.stderr)
    summary = {}
    for what in _rates(pairs[0]["ours"]):
        ours = [_rates(pair["ours"])[what] for pair in pairs]
        peer = [_rates(pair["peer"])[what] for pair in pairs]
        ratios = [a / b for a, b in zip(ours, peer, strict=True)]
        summary[what] = {
            "ours": statistics.median(ours),
            "peer": statistics.median(peer),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
    return {
        "model": model.name,
        "file_bytes": model.stat().st_size,
        "summary": summary,
        "pairs": pairs,
    }


def _print(result: dict[str, Any]) -> None:
    for what, row in result["summary"].items():
        print(
            f"{result['model']:28} {what:12} ours {row['ours']:8.2f}  llama.cpp {row['peer']:8.2f}"
            f"  ratio {row['ratio']:.2f} ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
        )
    runs = [pair["ours"] for pair in result["pairs"]]
    for key in ("gb_per_s", "read_gb_per_s", "read_share", "python_share"):
        if key in runs[0]:
            print(f"{result['model']:28} {key:12} {statistics.median(r[key] for r in runs):.3f}")


def main() -> None:
    """Command line."""
    options = _options()
    results = []
    for model in options.models:
        results.append(compare(model, options))
        _print(results[-1])
    if options.output:
        report = {
            "machine": describe_machine(),
            "threads": options.threads,
            "note": options.note,
            "results": results,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
