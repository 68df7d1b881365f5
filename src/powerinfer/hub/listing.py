"""Listings: the files of a repository at one commit, as the Hub answers and as our cache keeps.

Both forms are input from outside and read strictly. The cache also keeps the commit that each
revision was when the Hub was last asked.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from powerinfer.errors import HubError
from powerinfer.hub.names import GIT_HASH, MAIN, Reference
from powerinfer.sidecar import Field, Sidecar

if TYPE_CHECKING:
    from hashlib import _Hash

__all__ = [
    "FOLDER",
    "LARGEST_LISTING",
    "Listing",
    "RemoteFile",
    "forget_commit",
    "is_inside",
    "read_listing",
    "recall_commit",
    "recall_listing",
    "store_listing",
    "stored_listings",
    "stored_revisions",
]

FOLDER = "hub"
"""Folder of this package in the user's cache."""
LARGEST_LISTING = 1 << 26
"""Largest size of a listing in bytes; repositories have at most 100,000 files."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_PATH = 1 << 10
_LONGEST_PART = 200
_LONGEST_REPOSITORY = 100
_MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        path: repository-relative, with slashes; safe to join to a folder.
        sha256: None for small files, which are stored in git itself.
        git_sha1: git's hash of a file without `sha256`; None if unknown.
    """

    path: str
    num_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def content(self) -> str | None:
        """Hash that identifies the bytes; None if unknown."""
        return self.sha256 or self.git_sha1

    @property
    def folder(self) -> str:
        """Path of its folder with a trailing slash; empty at the top."""
        return self.path[: self.path.rfind("/") + 1]

    @property
    def name(self) -> str:
        """Name in its folder."""
        return self.path[self.path.rfind("/") + 1 :]

    def new_digest(self) -> "_Hash":
        """Start the hash that ends as `content`."""
        if self.sha256 is not None:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.num_bytes, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at one commit, sorted by path."""

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


def read_listing(text: bytes, repository: str) -> Listing:
    """Read the Hub's answer to `/api/models/ORG/NAME?blobs=true`.

    Raises:
        HubError: it is something else, or names files outside the repository.
    """

    def error(problem: str) -> HubError:
        return HubError(f"hf:{repository}: the server's listing cannot be used: {problem}")

    top = Field.parse(text, error)
    return _checked(repository, top["sha"], map(_read_sibling, top["siblings"].items()))


def recall_commit(reference: Reference) -> str | None:
    """Commit of a revision when the Hub was last asked; None if it never was."""
    return reference.commit or _REVISION.recall(_revision_path(reference))


def recall_listing(reference: Reference) -> Listing | None:
    """Stored listing of a revision; None if there is none."""
    commit = recall_commit(reference)
    return None if commit is None else _recall(reference.repository, commit)


def store_listing(reference: Reference, listing: Listing) -> None:
    """Remember a listing, and that the revision of a reference is its commit.

    Raises:
        HubError: the cache cannot be written.
    """
    _LISTING.write(_LISTING.cached(f"{listing.repository}/{listing.commit}"), listing)
    if reference.commit is None:
        _REVISION.write(_revision_path(reference), listing.commit)


def stored_listings(repository: str) -> list[Listing]:
    """All stored listings of a repository, by commit."""
    found = (_recall(repository, commit) for commit in _stored_names(repository, _LISTING))
    return [listing for listing in found if listing is not None]


def stored_revisions(repository: str) -> list[tuple[str, str]]:
    """Revisions that the Hub was asked for, with their commits."""
    names = map(unquote, _stored_names(repository, _REVISION))
    found = ((name, recall_commit(Reference(repository, None, name))) for name in names)
    return [(name, commit) for name, commit in found if commit is not None]


def forget_commit(repository: str, commit: str) -> None:
    """Remove the listing of a commit, and the revisions that point to it."""
    _LISTING.cached(f"{repository}/{commit}").unlink(missing_ok=True)
    for revision, other in stored_revisions(repository):
        if other == commit:
            _revision_path(Reference(repository, None, revision)).unlink(missing_ok=True)


def _recall(repository: str, commit: str) -> Listing | None:
    found = _LISTING.recall(_LISTING.cached(f"{repository}/{commit}"))
    is_right = found is not None and (found.repository, found.commit) == (repository, commit)
    return found if is_right else None


def _stored_names(repository: str, kind: Sidecar[Any]) -> list[str]:
    paths = kind.cached(f"{repository}/x").parent.glob(f"*{kind.suffix}")
    return [path.name.removesuffix(kind.suffix) for path in sorted(paths)]


def _revision_path(reference: Reference) -> Path:
    # Branch names may contain slashes.
    name = quote(reference.revision or MAIN, safe="")
    return _REVISION.cached(f"{reference.repository}/{name}")


def _checked(repository: str, sha: Field, files: Iterable[RemoteFile]) -> Listing:
    """Check the commit, which names a folder, and that no file is listed twice."""
    ordered = tuple(sorted(files, key=lambda file: file.path))
    if len({file.path for file in ordered}) < len(ordered):
        sha.refuse("it names a file twice")
    return Listing(repository, _hash(sha, GIT_HASH), ordered)


def _read_sibling(sibling: Field) -> RemoteFile:
    fields = sibling.fields()
    lfs = fields.get("lfs")
    sha256 = None if lfs is None or lfs.is_null() else _hash(lfs["sha256"], _SHA256)
    sha1 = None if sha256 else _hash_or_null(fields.get("blobId"), GIT_HASH)
    size = sibling["size"].integer(0, _MOST_BYTES)
    return RemoteFile(_path(sibling["rfilename"]), size, sha256, sha1)


def _encode(listing: Listing) -> Mapping[str, object]:
    files = [[each.path, each.num_bytes, each.sha256, each.git_sha1] for each in listing.files]
    return {"repository": listing.repository, "commit": listing.commit, "files": files}


def _decode(top: Field) -> Listing:
    fields = top.exactly("version", "repository", "commit", "files")
    repository = fields["repository"].text(_LONGEST_REPOSITORY)
    return _checked(repository, fields["commit"], map(_decode_file, fields["files"].items()))


def _decode_file(entry: Field) -> RemoteFile:
    cells = entry.items(4)
    if len(cells) != 4:
        entry.fail("is not a file: path, bytes and two hashes")
    hashes = _hash_or_null(cells[2], _SHA256), _hash_or_null(cells[3], GIT_HASH)
    return RemoteFile(_path(cells[0]), cells[1].integer(0, _MOST_BYTES), *hashes)


def _path(field: Field) -> str:
    path = field.text(_LONGEST_PATH)
    if not is_inside(path):
        field.fail(f"is not a file path: {path!r:.80}")
    return path


def is_inside(path: str) -> bool:
    """Tell a path that stays inside the folder it is joined to, on every system."""
    parts = path.split("/")
    is_bad = any(part in ("", ".", "..") or len(part.encode()) > _LONGEST_PART for part in parts)
    return not is_bad and path.isprintable() and not any(c in path for c in '\\:*?"<>|')


def _hash(field: Field, form: re.Pattern[str]) -> str:
    text = field.text(64)
    if not form.fullmatch(text):
        field.fail("is not a hash")
    return text


def _hash_or_null(field: Field | None, form: re.Pattern[str]) -> str | None:
    return None if field is None or field.is_null() else _hash(field, form)


_LISTING: Sidecar[Listing] = Sidecar(
    noun="listing",
    suffix=".listing.json",
    folder=FOLDER,
    version=1,
    largest_bytes=LARGEST_LISTING,
    error=HubError,
    encode=_encode,
    decode=_decode,
)

_REVISION: Sidecar[str] = Sidecar(
    noun="revision",
    suffix=".revision.json",
    folder=FOLDER,
    version=1,
    largest_bytes=1 << 12,
    error=HubError,
    encode=lambda commit: {"commit": commit},
    decode=lambda top: _hash(top["commit"], GIT_HASH),
)
