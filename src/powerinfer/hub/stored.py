"""Listings that the Hub gave, in our cache: what a revision was when it was last asked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from powerinfer.errors import HubError
from powerinfer.hub.listing import (
    LARGEST_LISTING,
    SHA1,
    SHA256,
    Listing,
    RemoteFile,
    make_listing,
    read_hash,
    read_path,
    read_size,
)
from powerinfer.hub.names import MAIN, Reference
from powerinfer.sidecar import Field, Sidecar

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "FOLDER",
    "forget_commit",
    "recall_commit",
    "recall_listing",
    "store_listing",
    "stored_listings",
    "stored_revisions",
]

FOLDER = "hub"
"""The folder in the user's cache for everything of this package."""

_LONGEST_NAME = 100


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


def _encode(listing: Listing) -> Mapping[str, object]:
    files = [[each.path, each.num_bytes, each.sha256, each.git_sha1] for each in listing.files]
    return {"repository": listing.repository, "commit": listing.commit, "files": files}


def _decode(top: Field) -> Listing:
    fields = top.exactly("version", "repository", "commit", "files")
    files = tuple(_decode_file(each) for each in fields["files"].items())
    return make_listing(fields["commit"], fields["repository"].text(_LONGEST_NAME), files)


def _decode_file(entry: Field) -> RemoteFile:
    cells = entry.items(4)
    if len(cells) != 4:
        entry.fail("is not a file: path, bytes and two hashes")
    path, size, sha256, sha1 = cells
    return RemoteFile(
        read_path(path),
        read_size(size),
        None if sha256.is_null() else read_hash(sha256, SHA256),
        None if sha1.is_null() else read_hash(sha1, SHA1),
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
    decode=lambda top: read_hash(top["commit"], SHA1),
)
