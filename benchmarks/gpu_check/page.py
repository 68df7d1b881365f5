"""A page of results, `results.md`: everything that the parts run so far have found."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hybrid_table import table

__all__ = ["write_page"]

_PARTS = ("steps", "peers", "rest")


def write_page(out: Path) -> None:
    """Write the page of the results that lie in `out`."""
    parts = [_read(out / f"{part}.json") for part in _PARTS]
    lines = [line for part in parts if part is not None for line in _section(part)]
    tables = [table(json.loads(path.read_text())) for path in sorted(out.glob("hybrid-*.json"))]
    text = "\n".join(["# What the GPU check found", "", *lines, *tables])
    (out / "results.md").write_text(text, encoding="utf-8")


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _section(part: dict[str, Any]) -> Iterator[str]:
    machine = part["machine"]
    yield f"## {part['part']}"
    yield ""
    yield (
        f"{machine['gpu'] or 'No GPU: interpreted kernels, speeds mean nothing'}; "
        f"{machine['cpu']}, {machine['logical_cpus']} processors; torch {machine['torch']}, "
        f"Triton {machine['triton']}, Python {machine['python']}; commit {machine['commit']}; "
        f"{part['seconds']:.0f} s, {part['failed']} failed."
    )
    yield ""
    yield "| | looked at | found |"
    yield "|---|---|---|"
    for row in part["findings"]:
        yield f"| {row['verdict']} | {row['what']} | {row['text']} |"
    yield ""
