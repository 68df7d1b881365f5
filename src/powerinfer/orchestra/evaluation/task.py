"""Tasks: what a policy reads, and what only its judges know."""

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from powerinfer.orchestra.evaluation.checking import Check, is_right

__all__ = ["Attachments", "Part", "Task"]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the two steps of a task, with its own answer; the second needs that of the first."""

    question: str
    gold: str
    kind: str


@dataclass(frozen=True, slots=True)
class Attachments:
    """Files that come with a task, by name.

    Attributes:
        documents: texts.
        databases: SQL that makes each SQLite database.
    """

    documents: Mapping[str, str] = field(default_factory=dict)
    databases: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
        """Write the files into a new folder; return the paths of documents and of databases."""
        folder.mkdir(parents=True)
        documents = tuple(folder / name for name in self.documents)
        for path in documents:
            path.write_text(self.documents[path.name], encoding="utf-8")
        databases = tuple(folder / name for name in self.databases)
        for path in databases:
            with closing(sqlite3.connect(path)) as database:
                database.executescript(self.databases[path.name])
        return documents, databases


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with a known answer.

    A policy gets `question` and the names of the attachments, and nothing else.

    Attributes:
        kind: for tables of results, simulated pools and the table by kind.
        parts: the steps of a task that can be split; empty for others.
        score: replaces `check` where the answer has a judge of its own; 1 is right.
    """

    id: str
    question: str
    gold: str
    check: Check = Check.NORMALIZED
    kind: str = ""
    attachments: Attachments = field(default_factory=Attachments)
    parts: tuple[Part, ...] = ()
    score: Callable[[str], float] | None = field(default=None, compare=False)

    def is_right(self, answer: str) -> bool:
        """Judge an answer."""
        if self.score is not None:
            return self.score(answer) >= 1.0
        return is_right(answer, self.gold, self.check)
