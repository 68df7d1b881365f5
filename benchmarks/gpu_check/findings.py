"""What a check found: one line for people, one JSON object for later."""

import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

__all__ = [
    "Check",
    "Figure",
    "Finding",
    "Setting",
    "Verdict",
    "attempted",
    "chosen",
    "keep",
    "read",
    "verdict_of",
]

Figure: TypeAlias = "float | int | str | bool | None"

# Characters of an error's text in a finding: Triton quotes the source of a kernel.
_MOST_QUOTED = 300


class Verdict(StrEnum):
    """What came of a check; a target that is missed is no fault."""

    OK = "ok"
    MISSED = "missed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        what: it was.
        verdict: whether it is as it should be.
        text: what was seen, in one line.
        figures: the same as numbers.
    """

    what: str
    verdict: Verdict
    text: str
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.verdict.value:<8}{self.what}: {self.text}"

    def as_json(self) -> dict[str, object]:
        """For the file of results."""
        return asdict(self) | {"verdict": self.verdict.value}


@dataclass(frozen=True)
class Setting:
    """What the checks run on.

    Attributes:
        device: torch's name of it.
        folder: of planted models and other files that nobody needs later.
        out: of results.
        threads: of the CPU's half.
    """

    device: str
    folder: Path
    out: Path
    threads: int

    @property
    def is_cuda(self) -> bool:
        """Whether it is a GPU; else kernels are interpreted, and only tiny models are run."""
        return self.device != "cpu"


Check: TypeAlias = Callable[[Setting], Iterator[Finding]]
"""Looks at something; runs in a process of its own."""


def chosen(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """The names that begin like one of `only`, or all where that is empty.

    Raises:
        SystemExit: no name begins like one of them; with 2.
    """
    for beginning in only:
        if not any(name.startswith(beginning) for name in names):
            print(f"error: ONLY: no {beginning!r}; there are {', '.join(names)}", file=sys.stderr)
            raise SystemExit(2)
    return [name for name in names if not only or name.startswith(tuple(only))]


def verdict_of(is_right: bool) -> Verdict:  # noqa: FBT001 - the question is in the call
    """OK or FAILED."""
    return Verdict.OK if is_right else Verdict.FAILED


def attempted(what: str, findings: Iterator[Finding]) -> Iterator[Finding]:
    """The findings; an error ends them with one more, a failure.

    Args:
        what: names the failure.
        findings: of one thing that others do not depend on.
    """
    try:
        yield from findings
    except Exception as error:  # noqa: BLE001  Triton's classes have no other base in common
        traceback.print_exc()
        text = " ".join(str(error).split())[:_MOST_QUOTED]
        yield Finding(what, Verdict.FAILED, f"{type(error).__name__}: {text}")


def keep(findings: Iterable[Finding], path: Path) -> None:
    """Write findings, each a line of a file as soon as it is there."""
    with path.open("a", encoding="utf-8") as file:
        for finding in findings:
            file.write(json.dumps(finding.as_json()) + "\n")
            file.flush()


def read(path: Path) -> list[Finding]:
    """What `keep` wrote so far."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_finding(json.loads(line)) for line in lines]


def _finding(value: dict[str, object]) -> Finding:
    figures = value["figures"]
    return Finding(
        what=str(value["what"]),
        verdict=Verdict(str(value["verdict"])),
        text=str(value["text"]),
        figures=figures if isinstance(figures, dict) else {},
    )
