"""The tables of docs/serving/speed.md, from the results of `PARTS=serve scripts/bench`.

Files of `benchmarks/results/serve` are what `powerinfer bench serve --json` printed.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from figures.amd import NOT_MEASURED, Row, ratio_text, table_of

__all__ = ["SERVING_PARTS"]

FOLDER = Path(__file__).resolve().parent.parent / "results" / "serve"
PEER = "llama-server"


def _reports() -> Iterator[tuple[str, dict[str, Any]]]:
    """Name of the format and report, Q4_0 before F16."""
    for name in ("q4_0", "f16"):
        path = FOLDER / f"relullama-7b-8L-{name}.json"
        if path.exists():
            yield name.upper(), json.loads(path.read_text(encoding="utf-8"))


def _speeds() -> str:
    def rows() -> Iterator[Row]:
        for name, report in _reports():
            for number, sides in report["clients"].items():
                for kind, side in sides.items():
                    against = side["against"]
                    bound, union = side["byte_bound"], side["union_share"]
                    yield (
                        name,
                        number,
                        kind if kind == PEER else f"`{kind}`",
                        f"{side['tokens_per_s']:.1f}",
                        ratio_text(against[PEER]) if PEER in against else "",
                        f"{against['off']['ratio']:.2f}" if "off" in against else "",
                        "" if union is None or kind == "off" else f"{union:.2f}",
                        "" if bound is None or kind == "off" else f"{bound:.2f}",
                    )

    return table_of(
        f"format | clients | server | tokens/s | / {PEER} | / our dense | union | byte bound",
        rows(),
    )


def _latency() -> str:
    def rows() -> Iterator[Row]:
        for name, report in _reports():
            for number, sides in report["clients"].items():
                for kind, side in sides.items():
                    times = (side["first_token_s"], side["gap_s"], side["gap_p99_s"])
                    cells = ("" if s is None else f"{1e3 * s:.0f}" for s in times)
                    yield name, number, kind if kind == PEER else f"`{kind}`", *cells

    return table_of("format | clients | server | first token, ms | gap, ms | p99, ms", rows())


def _scenarios() -> str:
    def rows() -> Iterator[Row]:
        for name, report in _reports():
            for kind, found in report.get("scenarios", {}).items():
                long, turn = found["long_prompt"], found["second_turn"]
                alone, beside = long["first_token_alone_s"], long["first_token_beside_s"]
                fresh, second = turn["first_token_of_fresh_prompt_s"], turn["first_token_s"]
                yield (
                    name,
                    f"`{kind}`",
                    f"{found['single_tokens_per_s'] / found['bench_tokens_per_s']:.3f}",
                    f"{1e3 * long['streams_gap_before_s']:.0f}",
                    f"{1e3 * long['streams_largest_gap_s']:.0f}",
                    f"{beside / alone:.2f}",
                    f"{fresh / second:.1f}",
                )

    return table_of(
        "format | kind | one stream / `bench` | gap of three streams, ms | largest beside a long "
        "prompt, ms | its first token / alone | second turn sooner by",
        rows(),
    )


def _peer() -> str:
    for _, report in _reports():
        if info := report.get("peer_system_info"):
            return f"```text\n{info}\n```\n"
    return NOT_MEASURED


SERVING_PARTS: dict[str, Callable[[], str]] = {
    "serve_speed": _speeds,
    "serve_latency": _latency,
    "serve_scenarios": _scenarios,
    "serve_peer": _peer,
}
