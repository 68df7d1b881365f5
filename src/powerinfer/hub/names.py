"""How a model on the Hub is named: `hf:ORG/NAME[:QUANT][@REVISION]`."""

import re
from dataclasses import dataclass

from powerinfer.errors import HubError

__all__ = ["FORM", "MAIN", "Reference", "is_reference", "parse_reference"]

FORM = "hf:ORG/NAME[:QUANT][@REVISION]"
"""What a reference looks like, for messages and help."""
MAIN = "main"
"""The revision that is meant where none is named."""

_SCHEME = "hf:"
# As the Hub allows them; both are also names of folders in the cache.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_LONGEST_NAME = 96
# What git allows in names of branches and tags, less what an address would need escapes for.
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/+-]*[A-Za-z0-9_+-])?")
_QUANT = re.compile(r"[^\x00-\x1f\x7f\\:@]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Reference:
    """A model on the Hub.

    Attributes:
        repository: `ORG/NAME`.
        quant: which of its files, as the user wrote it; None where none was named.
        revision: a branch, tag or commit; None for the branch `main`.
    """

    repository: str
    quant: str | None = None
    revision: str | None = None

    @property
    def commit(self) -> str | None:
        """The revision where it is a whole commit hash, which never changes its content."""
        revision = self.revision
        return revision if revision is not None and _COMMIT.fullmatch(revision) else None

    @property
    def model(self) -> str:
        """The reference without what it says of files, for messages: `hf:ORG/NAME@REVISION`."""
        return str(Reference(self.repository, None, self.revision))

    def __str__(self) -> str:
        quant = "" if self.quant is None else f":{self.quant}"
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{_SCHEME}{self.repository}{quant}{revision}"


def is_reference(name: str) -> bool:
    """Whether a name says that it names a model on the Hub, rightly spelt or not."""
    return name[: len(_SCHEME)].lower() == _SCHEME


def parse_reference(text: str) -> Reference:
    """Read a reference.

    Raises:
        HubError: it is none; says what is wrong with it.
    """
    if not is_reference(text):
        raise _bad(text, "it does not begin with hf:")
    rest = text[len(_SCHEME) :]
    if rest.startswith("/"):
        raise _bad(text, "no slash follows hf:")
    name, at, revision = rest.partition("@")
    repository, colon, quant = name.partition(":")
    _check_repository(text, repository)
    if colon and not _QUANT.fullmatch(quant):
        raise _bad(text, f"{quant!r:.60} names no file")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        advice = "; QUANT stands before @" if ":" in revision else ""
        raise _bad(text, f"{revision!r:.60} is no revision{advice}")
    return Reference(repository, quant if colon else None, revision if at else None)


def _check_repository(text: str, repository: str) -> None:
    organization, slash, name = repository.partition("/")
    if not slash or not organization or not name or "/" in name:
        raise _bad(text, f"{repository!r:.60} is not of the form ORG/NAME")
    for part in (organization, name):
        if not _NAME.fullmatch(part) or ".." in part or "--" in part or part.endswith(".git"):
            raise _bad(text, f"{part!r:.60} cannot be a name on the Hub")
    if len(repository) > _LONGEST_NAME:
        raise _bad(text, f"a name has at most {_LONGEST_NAME} characters")


def _bad(text: str, problem: str) -> HubError:
    shown = text[:_LONGEST] if text.isprintable() else ascii(text)[1 : _LONGEST + 1]
    return HubError(f"{shown}: {problem}; expected {FORM}")
