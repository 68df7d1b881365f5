"""Parts of pages that quote results: one function for each, registered under its name.

A page marks a part with `<!-- scripts/make-pages: NAME -->` before it and `<!-- end -->` after it.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = [
    "FORMATS",
    "PARTS",
    "RESULTS",
    "Json",
    "Row",
    "fill",
    "load",
    "load_all",
    "load_model",
    "part",
    "ratio_text",
    "signed",
    "table",
]

RESULTS = Path(__file__).resolve().parent.parent / "results"
Json = dict[str, Any]
Row = tuple[str, ...]
FORMATS = ("f16", "q8_0", "q6_k", "q4_k", "q4_0", "mxfp4")

_MARKED = re.compile(r"(<!-- scripts/make-pages: ([\w.-]+) -->\n?).*?(<!-- end -->)", re.DOTALL)
PARTS: dict[str, Callable[[], str]] = {}


def fill(page: str) -> str:
    """Replace the marked parts of a page.

    Raises:
        KeyError: a mark names no part.
    """
    return _MARKED.sub(lambda mark: mark[1] + PARTS[mark[2]]() + mark[3], page)


def part(name: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """Register a function that writes a part."""

    def register(write: Callable[[], str]) -> Callable[[], str]:
        PARTS[name] = write
        return write

    return register


def table(
    name: str, headings: str | None = None
) -> Callable[[Callable[[], Iterator[Row]]], Callable[[], str]]:
    """Register a function that yields the rows of a table.

    Args:
        name: of the part.
        headings: separated by ` | `; None: the first row has them.
    """

    def register(rows: Callable[[], Iterator[Row]]) -> Callable[[], str]:
        def write() -> str:
            found = [" | ".join(row) for row in rows()]
            head, *body = found if headings is None else [headings, *found]
            if not body:
                return "Not measured yet.\n"
            lines = [f"| {head} |", "|---" * (head.count(" | ") + 1) + "|"]
            lines += [f"| {row} |".replace("|  |", "| |") for row in body]
            return "\n".join(lines) + "\n"

        return part(name)(write)

    return register


def signed(share: float, digits: int = 2) -> str:
    """A difference in percent with its sign; what rounds to zero has a plus."""
    return f"{round(100 * share, digits) + 0.0:+.{digits}f} %"


def load(name: str) -> Json:
    """Read a file of the results."""
    found: Json = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return found


def load_all(pattern: str) -> list[tuple[str, Json]]:
    """Read every result of the files that match, with the names of the files without ending."""
    return [
        (path.stem, result)
        for path in sorted(RESULTS.glob(pattern))
        for result in json.loads(path.read_text(encoding="utf-8"))["results"]
    ]


def load_model(model: str, folder: str = ".") -> Iterator[tuple[int, str, Json]]:
    """Layers, format and result of the files `MODEL-<layers>L-<format>.json`."""
    for form in FORMATS:
        for stem, result in load_all(f"{folder}/{model}-*L-{form}.json"):
            yield int(stem.removeprefix(f"{model}-").split("L-")[0]), form.upper(), result


def ratio_text(row: Json | None) -> str:
    """Format a ratio with its range; empty if there is none."""
    if row is None:
        return ""
    return f"**{row['ratio']:.2f}** ({row['ratio_min']:.2f}-{row['ratio_max']:.2f})"
