"""What a repository holds at a commit: the Hub's listing, read strictly."""

import hashlib
import re
from dataclasses import dataclass
from typing import Protocol

from powerinfer.errors import HubError
from powerinfer.sidecar import Field

__all__ = [
    "LARGEST_LISTING",
    "SHA1",
    "SHA256",
    "Listing",
    "RemoteFile",
    "make_listing",
    "read_hash",
    "read_listing",
    "read_path",
    "read_size",
]

LARGEST_LISTING = 1 << 26
"""Bytes that a listing can have: repositories have at most 100,000 files."""

SHA1 = re.compile(r"[0-9a-f]{40}")
"""A hash as git and commits have it."""
SHA256 = re.compile(r"[0-9a-f]{64}")
"""A hash of a large file."""

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
    return make_listing(top["sha"], repository, files)


def _read_sibling(sibling: Field) -> RemoteFile:
    fields = sibling.fields()
    lfs = fields.get("lfs")
    sha256 = None
    if lfs is not None and not lfs.is_null():
        sha256 = read_hash(lfs["sha256"], SHA256)
    blob = fields.get("blobId")
    sha1 = None if sha256 or blob is None or blob.is_null() else read_hash(blob, SHA1)
    return RemoteFile(read_path(sibling["rfilename"]), read_size(sibling["size"]), sha256, sha1)


def make_listing(commit: Field, repository: str, files: tuple[RemoteFile, ...]) -> Listing:
    """Check the whole: the commit is a hash, since a folder is called so, and no file is twice."""
    found = read_hash(commit, SHA1)
    paths = [file.path for file in files]
    if len(set(paths)) != len(paths):
        commit.refuse("it names a file twice")
    return Listing(repository, found, tuple(sorted(files, key=lambda file: file.path)))


def read_path(field: Field) -> str:
    """A path that stays inside the folder that it is joined to, on every system."""
    path = field.text(_LONGEST_PATH)
    parts = path.split("/")
    is_bad = any(part in ("", ".", "..") or len(part.encode()) > _LONGEST_PART for part in parts)
    if is_bad or not path.isprintable() or any(c in path for c in '\\:*?"<>|'):
        field.fail(f"is no path of a file: {path!r:.80}")
    return path


def read_size(field: Field) -> int:
    """The size of a file."""
    return field.integer(0, _MOST_BYTES)


def read_hash(field: Field, form: re.Pattern[str]) -> str:
    """A hash in hexadecimal digits."""
    text = field.text(64)
    if not form.fullmatch(text):
        field.fail("is no hash")
    return text
