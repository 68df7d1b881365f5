"""Puts the AMD machine's newest dense results into the report that README and models.md quote.

    python benchmarks/amd_rows.py benchmarks/results/amd-zen5

Rows of the ordinary Llama in benchmarks/results/peers-amd-zen5.json become those of
`llama-7b-*.json` in the folder: range and median of every engine. The sparse rows stay: the
original PowerInfer ran with those alone. `scripts/make-pages` comes next.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import TypedDict

from figures.measured import AMD_RESULTS, DENSE_MODEL, FORMAT_NAMES, AmdRow
from sides import Run, rates

REPORT = Path(__file__).parent / "results" / AMD_RESULTS
_NAMES = {"ik_llama.cpp -rtr": "ik_llama.cpp -rtr 1"}
_WHAT = ("prefill 128", "decode")


class Machine(TypedDict):
    """What is read of a result's machine."""

    commit: str | None


class Result(TypedDict):
    """What is read of a compared model."""

    pairs: list[dict[str, Run]]


class Report(TypedDict):
    """What is read of a result file."""

    machine: Machine
    results: list[Result]


def rows_of(folder: Path) -> list[AmdRow]:
    """Prompts first, in the order of the formats."""
    rows: list[AmdRow] = []
    for what in _WHAT:
        for format_ in FORMAT_NAMES:
            for path in sorted(folder.glob(f"{DENSE_MODEL}-*L-{format_}.json")):
                report: Report = json.loads(path.read_text(encoding="utf-8"))
                rows.append(_row(report, format_, what))
    return rows


def _row(report: Report, format_: str, what: str) -> AmdRow:
    pairs = report["results"][0]["pairs"]
    found = {
        _NAMES.get(side, side): [round(rates(pair[side])[what], 2) for pair in pairs]
        for side in pairs[0]
    }
    return {
        "model": DENSE_MODEL,
        "layers": 12,
        "format": format_,
        "what": what,
        "tokens_per_s": {engine: (min(each), max(each)) for engine, each in found.items()},
        "median": {engine: statistics.median(each) for engine, each in found.items()},
        "commit": report["machine"]["commit"] or "",
    }


def main() -> None:
    """Command line."""
    report = json.loads(REPORT.read_text(encoding="utf-8"))
    rows = rows_of(Path(sys.argv[1]))
    if not rows:
        raise SystemExit(f"error: no {DENSE_MODEL}-*.json in {sys.argv[1]}")
    sparse = [row for row in report.pop("rows") if row["model"] != DENSE_MODEL]
    # One row a line, as it is: a difference of two reports can be read.
    lines = ",\n".join(f"  {json.dumps(row)}" for row in [*rows, *sparse])
    head = json.dumps(report, indent=1).removesuffix("\n}")
    REPORT.write_text(f'{head},\n "rows": [\n{lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
