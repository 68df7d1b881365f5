"""Where files of the Hub lie on this machine: the cache of `huggingface_hub`, and our own.

Ours is `hub/ORG/NAME/COMMIT/...` in the user's cache folder, each file under its path in the
repository. The library's is only read: `models--ORG--NAME` with `refs/REVISION`,
`snapshots/COMMIT/...` and `blobs/HASH`, as its documentation describes it.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from powerinfer._files import cache_folder
from powerinfer.hub.download import has_size
from powerinfer.hub.listing import SHA1, Listing, RemoteFile
from powerinfer.hub.names import MAIN, Reference
from powerinfer.hub.session import library_settings
from powerinfer.hub.stored import FOLDER, stored_listings

__all__ = [
    "adopt",
    "files_in",
    "is_fetched",
    "library_cache",
    "library_folder",
    "library_listing",
    "library_repositories",
    "our_cache",
    "our_folder",
    "our_repositories",
]


def our_folder(repository: str, commit: str) -> Path:
    """Our folder for the files of a commit; it need not exist."""
    return our_cache() / repository / commit


def our_cache() -> Path:
    """Our folder for everything of the Hub."""
    return cache_folder(FOLDER)


def is_fetched(path: Path) -> bool:
    """Whether a file lies in one of the caches, where it must stay as the Hub has it."""
    found = path.absolute()
    return found.is_relative_to(our_cache()) or found.is_relative_to(library_cache().absolute())


def our_repositories() -> Iterator[tuple[str, str, Path]]:
    """Repository, commit and folder of everything in our cache."""
    for folder in sorted(our_cache().glob("*/*/*/")):
        if SHA1.fullmatch(folder.name):
            yield f"{folder.parent.parent.name}/{folder.parent.name}", folder.name, folder


def library_cache() -> Path:
    """The folder in which `huggingface_hub` keeps what it fetched (`HF_HUB_CACHE`, `HF_HOME`)."""
    return Path(library_settings().HF_HUB_CACHE)


def library_folder(repository: str, commit: str) -> Path:
    """The library's folder for the files of a commit; it need not exist."""
    return _library_repository(repository) / "snapshots" / commit


def library_repositories() -> Iterator[tuple[str, str, Path]]:
    """Repository, commit and folder of all models in the library's cache."""
    for folder in sorted(library_cache().glob("models--*--*/snapshots/*/")):
        _, organization, name = folder.parent.parent.name.split("--", 2)
        yield f"{organization}/{name}", folder.name, folder


def library_listing(reference: Reference) -> Listing | None:
    """What the library's cache holds of a revision, which may not be all; None if nothing."""
    commit = reference.commit
    if commit is None:
        revisions = _library_repository(reference.repository) / "refs"
        with suppress(OSError, UnicodeDecodeError):
            commit = (revisions / (reference.revision or MAIN)).read_text("ascii").strip()
    if commit is None or not SHA1.fullmatch(commit):
        return None
    folder = library_folder(reference.repository, commit)
    files = tuple(files_in(folder))
    return Listing(reference.repository, commit, files) if files else None


def files_in(folder: Path) -> Iterator[RemoteFile]:
    """The files in a folder of a commit, as a listing would name them; links that lead nowhere not.

    They have no hashes.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield RemoteFile(path.relative_to(folder).as_posix(), path.stat().st_size)


def adopt(listing: Listing, file: RemoteFile) -> bool:
    """Whether a file is in our folder, after a link was made to what holds the same bytes.

    That is the library's file of this commit or of any, or ours of another commit. Where no link
    can be made, the file has to be fetched.
    """
    target = our_folder(listing.repository, listing.commit) / file.path
    if has_size(target, file.num_bytes):
        return True
    for found, is_ours in _same_bytes(listing, file):
        if has_size(found, file.num_bytes):
            with suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                _link(found, target, is_ours=is_ours)
                return True
    return False


def _same_bytes(listing: Listing, file: RemoteFile) -> Iterator[tuple[Path, bool]]:
    """Files that may hold the bytes of one, and whether they are ours."""
    yield library_folder(listing.repository, listing.commit) / file.path, False
    if file.content is None:
        return
    yield _library_repository(listing.repository) / "blobs" / file.content, False
    for other in stored_listings(listing.repository):
        for twin in other.files:
            if twin.content == file.content and other.commit != listing.commit:
                yield our_folder(other.repository, other.commit) / twin.path, True


def _link(found: Path, target: Path, *, is_ours: bool) -> None:
    """A name of its own for a file of ours, which may be removed; a symbolic link to others."""
    if is_ours:
        with suppress(OSError):
            os.link(found.resolve(), target)
            return
    target.symlink_to(found.resolve())


def _library_repository(repository: str) -> Path:
    return library_cache() / f"models--{repository.replace('/', '--')}"
