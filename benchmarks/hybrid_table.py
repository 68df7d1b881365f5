"""Prints results of `hybrid.py` as Markdown: every side and budget, and the ratios that count.

python benchmarks/hybrid_table.py benchmarks/results/nvidia-h100/hybrid-*.json
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["table"]


def table(result: dict[str, Any]) -> str:
    """Markdown of one result file."""
    return "\n".join([*_heading(result), "", *_rows(result), "", *_ratios(result), ""])


def _heading(result: dict[str, Any]) -> Iterator[str]:
    machine, speeds, planted = result["machine"], result["speeds"], result["planted"]
    yield f"## {result['shape']}, {result['layers']} layers, {result['format']}"
    yield ""
    yield (
        f"{machine['gpu'] or 'no GPU: interpreted kernels, speeds mean nothing'}; "
        f"{machine['cpu']}, {result['threads']} threads. Model {_gib(result['model_bytes'])} GiB, "
        f"{planted['density']:.1%} of the neurons fire, {planted['predicted_density']:.1%} are "
        f"predicted (rank {planted['rank']}, {planted['predictor_format']}, recall "
        f"{planted['recall']:.1%})."
    )
    yield (
        f"Reads: GPU {speeds['gpu_plain_read'] / 1e9:.0f} GB/s plain, "
        f"{speeds['gpu_read'] / 1e9:.0f} in products, rows {speeds['gpu_gather'] / 1e9:.0f}; "
        f"CPU {speeds['cpu_plain_read'] / 1e9:.1f} GB/s, dense decoding on the CPU alone "
        f"{speeds['cpu_dense_decode'] / 1e9:.1f} "
        f"({speeds['cpu_dense_decode'] / speeds['cpu_plain_read']:.0%}). "
        f"Hand-off: {_handoff(result)}."
    )


def _handoff(result: dict[str, Any]) -> str:
    figures = result["handoff"]
    if not figures:
        return "eager"
    return ", ".join(
        f"{name} {one['median_s'] * 1e6:.1f} us (p99 {one['p99_s'] * 1e6:.1f})"
        for name, one in figures.items()
    )


def _rows(result: dict[str, Any]) -> Iterator[str]:
    yield (
        "| side | budget | GPU GiB | hot | covered | tokens/s | predicted | GB a token | GB/s "
        "| hand-off | recorded |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for row in result["rows"]:
        if "error" in row:
            yield f"| {row['side']} {row['summary']} | {row['fraction']:.0%} | {row['error']} |"
            continue
        yield (
            f"| {row['side']} {row['summary']} | {row['fraction']:.0%} | {_gib(row['gpu_bytes'])} "
            f"| {row['hot_share']:.1%} | {row['gpu_share']:.1%} | {row['tokens_per_s']:.2f} "
            f"| {row['predicted_tokens_per_s']:.2f} | {row['bytes_per_token'] / 1e9:.2f} "
            f"| {row['gb_per_s']:.1f} | {_handoff_of(row)} | {_recorded(row)} |"
        )


def _handoff_of(row: dict[str, Any]) -> str:
    """How layers are handed to the CPU; a recorded step that hands none over names no way."""
    return "none" if row["is_recorded"] and row["handoff"] == "eager" else str(row["handoff"])


def _recorded(row: dict[str, Any]) -> str:
    """Graphs of a step, or how many kernels Python launched instead."""
    if row["is_recorded"]:
        return f"{row['graphs_per_step']} graphs"
    return f"no: {row['kernels_launched_per_step']} kernels launched"


def _ratios(result: dict[str, Any]) -> Iterator[str]:
    if result["ratios"]:
        yield "| ratio | measured | wanted | |"
        yield "|---|---|---|---|"
    for ratio in result["ratios"]:
        yield f"| {ratio['what']} | {ratio['value']:.2f} | {' | '.join(_wanted(ratio))} |"


def _wanted(ratio: dict[str, Any]) -> tuple[str, str]:
    """The target, and whether it was reached."""
    wanted, most, value = ratio["wanted"], ratio.get("most"), ratio["value"]
    if wanted is None:
        return "", ""
    is_reached = value >= wanted and (most is None or value <= most)
    span = f">= {wanted:g}" if most is None else f"{wanted:g} to {most:g}"
    return span, "reached" if is_reached else "missed"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 30):.2f}"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="*")
    for path in parser.parse_args().results:
        print(table(json.loads(path.read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()
