"""What a repository holds at a commit: the Hub's listing, read strictly, and stored."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from powerinfer.errors import HubError
from powerinfer.hub.names import MAIN, Reference
from powerinfer.sidecar import Field, Sidecar

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FOLDER",
    "Listing",
    "RemoteFile",
    "forget_commit",
    "read_listing",
    "recall_commit",
    "recall_listing",
    "store_listing",
    "stored_listings",
    "stored_revisions",
]

FOLDER = "hub"
"""The folder in the user's cache for everything of this package."""

LARGEST_LISTING = 1 << 26
"""Bytes that a listing can have: repositories have at most 100,000 files."""

_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA1 = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LONGEST_PATH = 1 << 10
_LONGEST_PART = 200
_MOST_BYTES = 1 << 50


class _Digest(Protocol):
    """What is used of a hash of `hashlib`."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        path: inside the repository, with slashes; safe to be joined to a folder.
        num_bytes: its size.
        sha256: of its bytes; None for small files, which are stored in git itself.
        git_sha1: git's hash of a file without `sha256`; None if that is not known either.
    """

    path: str
    num_bytes: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def content(self) -> str | None:
        """A hash that files with the same bytes share; None if none is known."""
        return self.sha256 or self.git_sha1

    @property
    def folder(self) -> str:
        """Path of its folder, with a slash behind it; empty for the top."""
        return self.path[: self.path.rfind("/") + 1]

    @property
    def name(self) -> str:
        """Its name in the folder."""
        return self.path[self.path.rfind("/") + 1 :]

    def new_digest(self) -> _Digest:
        """What computes `content`; of a file without, it computes something."""
        if self.sha256 is not None:
            return hashlib.sha256()
        return hashlib.sha1(b"blob %d\0" % self.num_bytes, usedforsecurity=False)


@dataclass(frozen=True, slots=True)
class Listing:
    """All files of a repository at one commit.

    Attributes:
        repository: `ORG/NAME`.
        commit: its hash.
        files: sorted by path.
    """

    repository: str
    commit: str
    files: tuple[RemoteFile, ...]


def read_listing(text: bytes, repository: str) -> Listing:
    """Read what the Hub answers to `/api/models/ORG/NAME?blobs=true`.

    Raises:
        HubError: it is something else, or names files outside the repository.
    """

    def error(problem: str) -> HubError:
        return HubError(f"hf:{repository}: the server's listing cannot be used: {problem}")

    top = Field.parse(text, error)
    files = tuple(_read_sibling(each) for each in top["siblings"].items())
    return _checked(top["sha"], repository, files)


def recall_commit(reference: Reference) -> str | None:
    """The commit that a revision was when the Hub was last asked; None if it never was."""
    return reference.commit or _REVISION.recall(_revision_path(reference))


def recall_listing(reference: Reference) -> Listing | None:
    """The stored listing of a revision; None if there is none."""
    commit = recall_commit(reference)
    return None if commit is None else _recall(reference.repository, commit)


def stored_listings(repository: str) -> list[Listing]:
    """All stored listings of a repository, of whichever commits."""
    names = sorted(
        path.name.removesuffix(_LISTING.suffix) for path in _cached(repository, _LISTING)
    )
    found = (_recall(repository, name) for name in names)
    return [listing for listing in found if listing is not None]


def store_listing(reference: Reference, listing: Listing) -> None:
    """Remember which commit a revision is, and what it holds.

    Raises:
        HubError: the cache cannot be written.
    """
    _LISTING.write(_LISTING.cached(f"{listing.repository}/{listing.commit}"), listing)
    if reference.commit is None:
        _REVISION.write(_revision_path(reference), listing.commit)


def stored_revisions(repository: str) -> list[tuple[str, str]]:
    """Revisions that the Hub was asked for, sorted, and the commits that they were."""
    found = []
    for path in sorted(_cached(repository, _REVISION)):
        commit = _REVISION.recall(path)
        if commit is not None:
            found.append((unquote(path.name.removesuffix(_REVISION.suffix)), commit))
    return found


def forget_commit(repository: str, commit: str) -> None:
    """Forget what a commit holds, and which revisions it was."""
    _LISTING.cached(f"{repository}/{commit}").unlink(missing_ok=True)
    for revision, other in stored_revisions(repository):
        if other == commit:
            _revision_path(Reference(repository, None, revision)).unlink(missing_ok=True)


def _cached(repository: str, kind: "Sidecar[Any]") -> "list[Path]":
    return list(kind.cached(f"{repository}/x").parent.glob(f"*{kind.suffix}"))


def _recall(repository: str, commit: str) -> Listing | None:
    found = _LISTING.recall(_LISTING.cached(f"{repository}/{commit}"))
    return (
        found
        if found is not None
        and (found.repository, found.commit)
        == (
            repository,
            commit,
        )
        else None
    )


def _revision_path(reference: Reference) -> "Path":
    # A branch may have slashes in its name.
    name = quote(reference.revision or MAIN, safe="")
    return _REVISION.cached(f"{reference.repository}/{name}")


def _read_sibling(sibling: Field) -> RemoteFile:
    fields = sibling.fields()
    lfs = fields.get("lfs")
    sha256 = None
    if lfs is not None and not lfs.is_null():
        sha256 = _hash(lfs["sha256"], _SHA256)
    blob = fields.get("blobId")
    sha1 = None if sha256 or blob is None or blob.is_null() else _hash(blob, _SHA1)
    return RemoteFile(_path(sibling["rfilename"]), _size(sibling["size"]), sha256, sha1)


def _checked(commit: Field, repository: str, files: tuple[RemoteFile, ...]) -> Listing:
    found = _hash(commit, _COMMIT)
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        commit.refuse("it names a file twice")
    return Listing(repository, found, tuple(sorted(files, key=lambda file: file.path)))


def _path(field: Field) -> str:
    """A path that stays inside the folder it is joined to, on every system."""
    path = field.text(_LONGEST_PATH)
    parts = path.split("/")
    is_bad = any(part in ("", ".", "..") or len(part.encode()) > _LONGEST_PART for part in parts)
    if is_bad or not path.isprintable() or any(c in path for c in '\\:*?"<>|'):
        field.fail(f"is no path of a file: {path!r:.80}")
    return path


def _size(field: Field) -> int:
    return field.integer(0, _MOST_BYTES)


def _hash(field: Field, form: re.Pattern[str]) -> str:
    text = field.text(64)
    if not form.fullmatch(text):
        field.fail("is no hash")
    return text


def _encode(listing: Listing) -> Mapping[str, object]:
    files = [[each.path, each.num_bytes, each.sha256, each.git_sha1] for each in listing.files]
    return {"repository": listing.repository, "commit": listing.commit, "files": files}


def _decode(top: Field) -> Listing:
    fields = top.exactly("version", "repository", "commit", "files")
    files = tuple(_decode_file(each) for each in fields["files"].items())
    return _checked(fields["commit"], fields["repository"].text(_LONGEST_PATH), files)


def _decode_file(entry: Field) -> RemoteFile:
    cells = entry.items(4)
    if len(cells) != 4:
        entry.fail("is not a file: path, bytes and two hashes")
    path, size, sha256, sha1 = cells
    return RemoteFile(
        _path(path),
        _size(size),
        None if sha256.is_null() else _hash(sha256, _SHA256),
        None if sha1.is_null() else _hash(sha1, _SHA1),
    )


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
    decode=lambda top: _hash(top["commit"], _COMMIT),
)
