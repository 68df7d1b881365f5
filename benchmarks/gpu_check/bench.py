"""CPU and GPU together against layer offload, over budgets: `benchmarks/hybrid.py`, row by row."""

from collections.abc import Iterator
from typing import Any

from gpu_check.findings import Finding, Setting, Verdict, verdict_of
from hybrid import compare, options_of, row_text

__all__ = ["check_bench", "ratio_finding", "row_finding"]

# Without a GPU: one side that leaves the CPU work, one that leaves it none.
_TINY = ("--steps", "1", "--only", "ce")


def check_bench(shape: str, setting: Setting) -> Iterator[Finding]:
    """Every row of the table, then its ratios; `hybrid-SHAPE.json` keeps all figures.

    Args:
        shape: key of `planting.shapes.SHAPES`.
        setting: where to run it.
    """
    path = setting.out / f"hybrid-{shape}.json"
    arguments = ["--shape", shape, "--device", setting.device, "-o", str(path)]
    arguments += ["--threads", str(setting.threads), *(() if setting.is_cuda else _TINY)]
    result: dict[str, Any] = {"ratios": []}
    for result in compare(options_of(arguments)):
        yield row_finding(shape, result["rows"][-1], is_cuda=setting.is_cuda)
    for ratio in result["ratios"] if setting.is_cuda else ():
        yield ratio_finding(shape, ratio)


def row_finding(shape: str, row: dict[str, Any], *, is_cuda: bool) -> Finding:
    """Find whether a row was measured, and its step replayed rather than launched."""
    what = f"{shape}, {row['side']} at {row['fraction']:.0%}"
    is_right = "error" not in row and (row["is_recorded"] or not is_cuda)
    return Finding(what, verdict_of(is_right), row_text(row))


def ratio_finding(shape: str, ratio: dict[str, Any]) -> Finding:
    """Find whether a ratio reaches its target."""
    value, wanted, most = ratio["value"], ratio["wanted"], ratio["most"]
    text, verdict = f"{value:.2f}", Verdict.OK
    if wanted is not None:
        text += f", wanted {wanted:g}" + ("" if most is None else f" to {most:g}")
        is_reached = value >= wanted and (most is None or value <= most)
        verdict = Verdict.OK if is_reached else Verdict.MISSED
    return Finding(f"{shape}, {ratio['what']}", verdict, text, {"value": value})
