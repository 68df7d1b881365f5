"""What the tests read in the pages: links, anchors, and the commands that users paste."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "PAGES",
    "ROOT",
    "Command",
    "anchors",
    "inline_commands",
    "links",
    "page_name",
    "shell_commands",
]

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SEPARATORS = frozenset({"&&", "||", ";", "|", "(", ")", "<(", "&"})
_REDIRECTIONS = frozenset({">", ">>", "<", ">&", "2>"})


@dataclass(frozen=True)
class Command:
    """One command of a page.

    Attributes:
        words: program and arguments, without assignments before them and redirections.
        stdin: what a pipe from `echo` or `printf` gives it.
        line: how the page writes it.
    """

    words: tuple[str, ...]
    stdin: str
    line: str

    @property
    def program(self) -> str:
        """Its name, or its path in the project."""
        return self.words[0]


def page_name(path: Path) -> str:
    """Path in the project, for the name of a test."""
    return str(path.relative_to(ROOT))


def links(text: str) -> list[str]:
    """Targets of all links and pictures."""
    return _LINK.findall(_CODE.sub("", _BLOCK.sub("", text)))


def anchors(text: str) -> set[str]:
    """Anchors that GitHub gives to the headings."""
    found: set[str] = set()
    for heading in _HEADING.findall(_BLOCK.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = 0
        while (numbered := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(numbered)
    return found


def shell_commands(text: str) -> Iterator[Command]:
    """Commands of the `sh` blocks, and of the examples in a command's help (`text` blocks)."""
    for language, block in _BLOCK.findall(text):
        lines = []
        if language == "sh":
            lines = block.replace("\\\n", " ").splitlines()
        elif language == "text" and "Examples:" in block:
            block = block.replace("\\\n", " ")
            examples = block.split("Examples:")[1].split("\n\n")[0].splitlines()
            # Remarks stand apart from the commands.
            lines = [re.split(r"(?<=\S) {2,}", line)[0] for line in examples]
        for line in _whole(lines):
            yield from _commands(line)


def _whole(lines: list[str]) -> Iterator[str]:
    """Lines, joined where a quotation goes on in the next one."""
    begun: list[str] = []
    for line in lines:
        begun.append(line)
        try:
            shlex.split("\n".join(begun), comments=True)
        except ValueError:
            continue
        yield "\n".join(begun)
        begun.clear()
    yield from begun


def inline_commands(text: str) -> list[Command]:
    """Commands within sentences: `powerinfer ...`."""
    spans = (span.strip("`") for span in _CODE.findall(_BLOCK.sub("", text)))
    # A path such as powerinfer/data is no command.
    lines = [" ".join(span.split()) for span in spans if span.startswith("powerinfer ")]
    return [command for line in lines for command in _commands(line)]


def _commands(line: str) -> Iterator[Command]:
    """Split a line of the shell at its operators."""
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    stdin = ""
    words: list[str] = []
    for word in [*reader, ";"]:
        if word not in _SEPARATORS:
            words.append(word)
            continue
        command = _without_shell(words)
        if command:
            yield Command(tuple(command), stdin, line.strip())
        stdin = _echoed(command) if word == "|" else ""
        words = []


def _without_shell(words: list[str]) -> list[str]:
    """A command without assignments and redirections."""
    kept: list[str] = []
    skips = False
    for word in words:
        if skips or word in _REDIRECTIONS:
            skips = word in _REDIRECTIONS
        elif kept or not _ASSIGNMENT.match(word):
            kept.append(word)
    return kept


def _echoed(words: list[str]) -> str:
    if words[:1] not in (["echo"], ["printf"]):
        return ""
    return " ".join(words[1:]).replace("\\n", "\n")
