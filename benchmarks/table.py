"""Prints the results of scripts/bench as the Markdown tables of docs/speed.md.

python benchmarks/table.py benchmarks/results
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

BANDWIDTH_KEYS = ("bytes_per_token", "gb_per_s", "read_gb_per_s", "read_share", "python_share")


def _compared(report: dict[str, Any]) -> list[str]:
    lines = []
    for result in report["results"]:
        for what, row in result["summary"].items():
            lines.append(
                f"| {result['model'].removesuffix('.gguf')} | {what} | {row['ours']:.2f} "
                f"| {row['peer']:.2f} | **{row['ratio']:.2f}** "
                f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f}) |"
            )
    return lines


def _bandwidth(report: dict[str, Any]) -> list[str]:
    lines = []
    for result in report["results"]:
        runs = [pair["ours"] for pair in result["pairs"]]
        median = {
            key: statistics.median(run[key] for run in runs)
            for key in (
                "bytes_per_token",
                "gb_per_s",
                "read_gb_per_s",
                "read_share",
                "python_share",
            )
        }
        lines.append(
            f"| {result['model'].removesuffix('.gguf')} | {median['bytes_per_token'] / 1e9:.2f} "
            f"| {median['gb_per_s']:.1f} | {median['read_gb_per_s']:.1f} "
            f"| {median['read_share']:.0%} | {median['python_share']:.1%} |"
        )
    return lines


def main() -> None:
    """Command line."""
    folder = Path(sys.argv[1])
    reports = [json.loads(path.read_text("utf8")) for path in sorted(folder.glob("llama-*.json"))]
    reports = [report for report in reports if "results" in report]
    print("| model | what | ours, tokens/s | llama.cpp, tokens/s | ratio (range) |")
    print("|---|---|---|---|---|")
    print("\n".join(line for report in reports for line in _compared(report)))
    print("\n| model | GB per token | decode, GB/s | plain read, GB/s | share | Python |")
    print("|---|---|---|---|---|---|")
    print("\n".join(line for report in reports for line in _bandwidth(report)))


if __name__ == "__main__":
    main()
