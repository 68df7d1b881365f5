"""Prints the results of scripts/bench as the Markdown tables of docs/speed.md.

python benchmarks/table.py benchmarks/results
"""

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def _compared(result: Result) -> Iterator[str]:
    for what, row in result["summary"].items():
        yield (
            f"| {_name(result)} | {what} | {row['ours']:.2f} "
            f"| {row['peer']:.2f} | **{row['ratio']:.2f}** {_range(row)} |"
        )


def _bandwidth(result: Result) -> Iterator[str]:
    keys = ("bytes_per_token", "gb_per_s", "read_gb_per_s", "read_share", "python_share")
    runs = [pair["ours"] for pair in result["pairs"]]
    median = {key: statistics.median(run[key] for run in runs) for key in keys}
    yield (
        f"| {_name(result)} | {median['bytes_per_token'] / 1e9:.2f} "
        f"| {median['gb_per_s']:.1f} | {median['read_gb_per_s']:.1f} "
        f"| {median['read_share']:.0%} | {median['python_share']:.1%} |"
    )


def _planted(result: Result) -> Iterator[str]:
    planted = result["planted"]
    if planted:
        yield (
            f"| {_name(result)} | {result['layers']} | {planted['density']:.3f} "
            f"| {planted['rank']:.0f} | {planted['predicted_density']:.3f} "
            f"| {planted['recall']:.3f} | {planted['ffn_error']:.4f} "
            f"| {result['dense_bytes'] / 1e9:.2f} |"
        )


def _sparse(result: Result) -> Iterator[str]:
    """Decode of every kind, against llama.cpp and against our dense."""
    for kind, row in result["kinds"].items():
        against = {side: table.get("decode") for side, table in row["against"].items()}
        if not any(against.values()):
            continue
        ours = next(found["ours"] for found in against.values() if found)
        cells = [_ratio(against.get(side)) for side in ("llama.cpp", "dense")]
        apart = _apart(row.get("head_apart"))
        bound = "" if row["bound"] is None else f"{row['bound']:.2f}"
        yield (
            f"| {_name(result)} | {kind} | {_share(row['predicted_share'])} "
            f"| {_share(row['active_share'])} | {row['bytes_per_token'] / 1e9:.2f} "
            f"| {row['gb_per_s']:.1f} | {ours:.2f} | {cells[0]} "
            f"| {apart} | {cells[1]} | {bound} |"
        )


def _prefill(result: Result) -> Iterator[str]:
    for kind, row in result["kinds"].items():
        for what, found in row["against"].get("dense", {}).items():
            if what != "decode":
                yield (
                    f"| {_name(result)} | {kind} | {what} | {found['ours']:.1f} "
                    f"| {found['peer']:.1f} | {_ratio(found)} |"
                )


def _operators(result: Result) -> Iterator[str]:
    def shown(value: float | None, digits: int) -> str:
        return "" if value is None else f"{value:.{digits}f}"

    for row in result["operators"]:
        share = "" if row["of_plain"] is None else f"{row['of_plain']:.0%}"
        yield (
            f"| {_name(result)} | {result['sparsity']} | {row['operator']} | {row['ms']:.1f} "
            f"| {shown(row['gb'] or None, 3)} | {shown(row['gb_per_s'], 1)} "
            f"| {shown(row['plain_gb_per_s'], 1)} | {share} |"
        )


def _name(result: Result) -> str:
    name: str = result["model"]
    return name.removesuffix(".gguf").removesuffix(".powerinfer")


def _range(row: dict[str, float]) -> str:
    return f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"


def _ratio(row: dict[str, float] | None) -> str:
    return "" if row is None else f"**{row['ratio']:.2f}** {_range(row)}"


def _apart(row: dict[str, float] | None) -> str:
    """Ratio without the head, and its bound."""
    if row is None:
        return ""
    bound = "" if row["layers_alone_bound"] is None else f" of {row['layers_alone_bound']:.2f}"
    return f"{row['layers_alone']:.2f}{bound}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


# Headings, the key that tells which results belong here, and what makes their rows.
TABLES = (
    ("model | what | ours, tokens/s | llama.cpp, tokens/s | ratio (range)", "pairs", _compared),
    (
        "model | GB per token | decode, GB/s | plain read, GB/s | share | Python",
        "pairs",
        _bandwidth,
    ),
    (
        "model | layers | density | mlp rank | mlp predicts | recall | FFN error | dense GB",
        "kinds",
        _planted,
    ),
    (
        "model | kind | predicted | active | GB per token | GB/s | tokens/s | / llama.cpp "
        "| without head | / our dense | byte bound",
        "kinds",
        _sparse,
    ),
    ("model | kind | what | tokens/s | dense, tokens/s | ratio (range)", "kinds", _prefill),
    (
        "model | kind | operator | ms | GB | GB/s | plain, GB/s | of plain",
        "operators",
        _operators,
    ),
)


def main() -> None:
    """Command line."""
    reports = [
        json.loads(path.read_text("utf8")) for path in sorted(Path(sys.argv[1]).glob("*.json"))
    ]
    results = [
        result
        for report in reports
        if isinstance(report.get("results"), list)
        for result in report["results"]
    ]
    for heading, key, rows_of in TABLES:
        rows = dict.fromkeys(row for result in results if key in result for row in rows_of(result))
        if rows:
            print(f"| {heading} |\n|{'---|' * (heading.count('|') + 1)}")
            print("\n".join(rows), end="\n\n")


if __name__ == "__main__":
    main()
