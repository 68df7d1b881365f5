"""The tables of mixtures of experts in docs/speed.md and docs/sparsity.md.

They come from `benchmarks/results/experts`, which `PARTS=experts scripts/bench` writes; a table
whose results are missing says so.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

from figures.amd import Result, Row, ratio_text, table_of

__all__ = ["EXPERT_PARTS"]

_FOLDER = Path(__file__).resolve().parent.parent / "results" / "experts"
_NAMES = {
    "smallthinker-4b": "SmallThinker-4B",
    "smallthinker-21b": "SmallThinker-21B",
    "turbosparse-mixtral": "TurboSparse-Mixtral",
    "qwen3moe-30b-a3b": "Qwen3-30B-A3B",
    "gpt-oss-20b": "gpt-oss-20b",
}


def _results() -> Iterator[tuple[str, Result]]:
    """What to call a model, and its result, in the order of `_NAMES`."""
    for model, name in _NAMES.items():
        for path in sorted(_FOLDER.glob(f"{model}-*L-*.json")):
            report: dict[str, list[Result]] = json.loads(path.read_text(encoding="utf-8"))
            layers, form = path.stem.removeprefix(f"{model}-").split("L-")
            for result in report["results"]:
                yield f"{name}, {layers} layers, {form.upper()}", result


def _sparse() -> str:
    def rows() -> Iterator[Row]:
        for name, result in _results():
            for kind, row in result.get("kinds", {}).items():
                for what, found in row["against"].get("llama.cpp", {}).items():
                    dense = row["against"].get("dense", {}).get(what)
                    is_decode = what == "decode"
                    active, bound = row["active_share"], row["bound"]
                    yield (
                        name,
                        f"`{kind}`",
                        what.replace("prefill", "prompt of"),
                        f"{active:.2f}" if is_decode and active is not None else "",
                        f"{row['gb_per_s']:.1f} ({row['read_gb_per_s']:.1f})" if is_decode else "",
                        f"{found['ours']:.1f}",
                        f"{found['peer']:.1f}",
                        ratio_text(found),
                        f"{dense['ratio']:.2f}" if dense else "",
                        f"{bound:.2f}" if is_decode and bound is not None else "",
                    )

    return table_of(
        "model | kind | what | active | GB/s (plain read) | ours, tokens/s | llama.cpp "
        "| / llama.cpp | / our dense | byte bound",
        rows(),
    )


def _dense() -> str:
    def rows() -> Iterator[Row]:
        for name, result in _results():
            for what, found in result.get("against", {}).get("llama.cpp", {}).items():
                which = result["better"].get("better ik", {}).get(what)
                ik = result["against"][which][what] if which else None
                yield (
                    name,
                    what.replace("prefill", "prompt of"),
                    _rates_of_reading(result) if what == "decode" else "",
                    f"{found['ours']:.1f}",
                    f"{found['peer']:.1f}",
                    f"{ik['peer']:.1f}" if ik else "",
                    ratio_text(found),
                    ratio_text(ik),
                )

    return table_of(
        "model | what | GB/s (plain read) | ours, tokens/s | llama.cpp | ik_llama.cpp "
        "| / llama.cpp | / ik_llama.cpp",
        rows(),
    )


def _rates_of_reading(result: Result) -> str:
    runs = [pair["ours"] for pair in result["pairs"]]
    rate, read = (
        statistics.median(run[key] for run in runs) for key in ("gb_per_s", "read_gb_per_s")
    )
    return f"{rate:.1f} ({read:.1f})"


EXPERT_PARTS: dict[str, Callable[[], str]] = {
    "experts_sparse": _sparse,
    "experts_dense": _dense,
}
