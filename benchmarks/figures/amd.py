"""The tables of docs/speed.md that come from the AMD machine's results.

`scripts/make-pages` writes them between their marks; a table whose results are missing says so.
Files of `benchmarks/results/amd-zen4`, by what wrote them (`PARTS=peers scripts/bench`):

    llama-7b-*.json, avx2-llama-7b-*.json     compare.py with all peers
    relullama-*.json                          compare.py --sparsity, decode
    prompts-*.json                            compare.py --sparsity --no-peer, prompts
    steps-*.json                              step_rows.py
    loaded.json                               loaded.py
"""

import json
import statistics
from collections.abc import Callable, Iterator
from typing import NotRequired, TypedDict

from figures.measured import AMD_FOLDER

__all__ = ["AMD_PARTS", "Result", "Row", "ratio_text", "table_of"]

NOT_MEASURED = "Not measured yet.\n"
_FORMATS = ("q4_0", "q4_k", "q6_k", "q8_0", "f16")
_ROWS = ("2", "4", "8", "16", "32")

Row = tuple[str, ...]
Ratios = dict[str, dict[str, float]]


class Kind(TypedDict):
    """What is read of a sparse setting."""

    predicted_share: float | None
    active_share: float | None
    gb_per_s: float | None
    read_gb_per_s: float | None
    bound: float | None
    against: dict[str, Ratios]


class Result(TypedDict):
    """One model of a result file: what is read of it here."""

    model: str
    kernels: str
    against: NotRequired[dict[str, Ratios]]
    better: NotRequired[dict[str, dict[str, str]]]
    pairs: NotRequired[list[dict[str, dict[str, float]]]]
    kinds: NotRequired[dict[str, Kind]]
    steps: NotRequired[dict[str, dict[str, float]]]


def _results(prefix: str) -> list[Result]:
    """Those of the files whose names begin so, in the order of `_FORMATS`."""
    found: list[Result] = []
    for path in sorted(AMD_FOLDER.glob(f"{prefix}*.json")):
        report: dict[str, list[Result]] = json.loads(path.read_text(encoding="utf-8"))
        found += report["results"]
    return sorted(found, key=lambda result: _FORMATS.index(_format(result)))


def _format(result: Result) -> str:
    return result["model"].split(".")[0].rsplit("-", 1)[1]


def _name(result: Result) -> str:
    return _format(result).upper()


def table_of(headings: str, rows: Iterator[Row]) -> str:
    """The table, or that there is none yet."""
    found = list(rows)
    if not found:
        return NOT_MEASURED
    lines = [f"| {headings} |", f"|{'---|' * (headings.count('|') + 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in found]
    return "\n".join(lines).replace("|  |", "| |") + "\n"


def ratio_text(row: dict[str, float] | None) -> str:
    """The ratio with its range; nothing where there is none."""
    if row is None:
        return ""
    return f"**{row['ratio']:.2f}** ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"


def _dense(prefix: str) -> str:
    def rows() -> Iterator[Row]:
        for result in _results(prefix):
            against = result["against"]
            for what, found in against["llama.cpp"].items():
                which = result["better"].get("better ik", {}).get(what)
                ik = against[which][what] if which else None
                yield (
                    _name(result),
                    what.replace("prefill", "prompt of"),
                    f"{found['ours']:.1f}",
                    f"{found['peer']:.1f}",
                    f"{ik['peer']:.1f}{', `-rtr`' if which == 'ik_llama.cpp -rtr' else ''}"
                    if ik
                    else "",
                    ratio_text(found),
                    ratio_text(ik),
                )

    return table_of(
        "format | what | ours, tokens/s | llama.cpp | ik_llama.cpp | / llama.cpp | / ik_llama.cpp",
        rows(),
    )


def _bandwidth() -> str:
    keys = ("bytes_per_token", "gb_per_s", "read_gb_per_s", "read_share")

    def rows() -> Iterator[Row]:
        for result in _results("llama-7b-"):
            runs = [pair["ours"] for pair in result["pairs"]]
            if keys[0] not in runs[0]:
                continue
            size, rate, read, share = (statistics.median(run[key] for run in runs) for key in keys)
            yield (
                _name(result),
                f"{size / 1e9:.2f}",
                f"{rate:.1f}",
                f"{read:.1f}",
                f"{share:.0%}",
            )

    return table_of("format | GB per token | decode, GB/s | best plain read, GB/s | share", rows())


def _sparse() -> str:
    def share(value: float | None) -> str:
        return "" if value is None else f"{value:.3f}"

    def rows() -> Iterator[Row]:
        for result in _results("relullama-"):
            for kind, row in result["kinds"].items():
                decode = row["against"]["llama.cpp"]["decode"]
                dense = row["against"].get("dense", {}).get("decode")
                yield (
                    _name(result),
                    f"`{kind}`",
                    share(row["predicted_share"]),
                    share(row["active_share"]),
                    f"{row['gb_per_s']:.1f} ({row['read_gb_per_s']:.1f})",
                    f"{decode['ours']:.1f}",
                    f"{decode['peer']:.1f}",
                    ratio_text(decode),
                    f"{dense['ratio']:.2f}" if dense else "",
                    f"{row['bound']:.2f}" if row["bound"] is not None else "",
                )

    return table_of(
        "format | kind | predicted | active | GB/s (plain read) | ours, tokens/s | llama.cpp "
        "| / llama.cpp | / our dense | byte bound",
        rows(),
    )


def _prompts() -> str:
    def rows() -> Iterator[Row]:
        for result in _results("prompts-"):
            for kind, row in result["kinds"].items():
                for what, found in row["against"].get("dense", {}).items():
                    yield (
                        _name(result),
                        result["kernels"],
                        f"`{kind}`",
                        what.removeprefix("prefill "),
                        f"{found['ours']:.1f}",
                        f"{found['peer']:.1f}",
                        ratio_text(found),
                    )

    return table_of(
        "format | kernels | kind | prompt | tokens/s | dense, tokens/s | / our dense", rows()
    )


def _steps() -> str:
    def rows() -> Iterator[Row]:
        for result in sorted(_results("steps-"), key=lambda each: each["kernels"] != "avx512"):
            steps = result["steps"]
            cells = (f"{steps[n]['of_one']:.2f}" if n in steps else "" for n in _ROWS)
            yield (_name(result), result["kernels"], f"{steps['1']['ms']:.1f}", *cells)

    return table_of(f"format | kernels | one token, ms | {' | '.join(_ROWS)}", rows())


def _loaded() -> str:
    path = AMD_FOLDER / "loaded.json"
    if not path.exists():
        return NOT_MEASURED
    report: dict[str, list[tuple[float, float]]] = json.loads(path.read_text(encoding="utf-8"))
    shares = [loaded / idle for idle, loaded in report["pairs"]]
    return (
        "With one spinning process per core beside it, decode (Q4_0) keeps "
        f"{statistics.median(shares):.2f} ({min(shares):.2f}-{max(shares):.2f}) of its idle "
        "speed.\n"
    )


AMD_PARTS: dict[str, Callable[[], str]] = {
    "amd_dense": lambda: _dense("llama-7b-"),
    "amd_dense_avx2": lambda: _dense("avx2-llama-7b-"),
    "amd_bandwidth": _bandwidth,
    "amd_sparse": _sparse,
    "amd_prompts": _prompts,
    "amd_steps": _steps,
    "amd_loaded": _loaded,
}
