"""The two caches of files from the Hub: ours, and that of `huggingface_hub`, which is only read.

Ours is `hub/ORG/NAME/COMMIT/...` in the user's cache folder, each file under its path in the
repository. The library's is `models--ORG--NAME` with `refs/REVISION`, `snapshots/COMMIT/...` and
`blobs/HASH`, as its documentation describes. It is read here rather than with `scan_cache_dir`,
which drops a whole repository for one broken link or one branch that was never fetched.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from powerinfer._files import cache_folder
from powerinfer.hub.client import library_settings
from powerinfer.hub.download import has_size
from powerinfer.hub.listing import FOLDER, Listing, RemoteFile, stored_listings
from powerinfer.hub.names import GIT_HASH, MAIN, Reference

__all__ = [
    "Snapshot",
    "is_fetched",
    "library_cache",
    "library_folder",
    "library_listing",
    "link_existing",
    "our_cache",
    "our_folder",
    "package_cache",
    "snapshots",
]


class Snapshot(NamedTuple):
    """Files of a repository at one commit, in either cache."""

    listing: Listing
    folder: Path
    is_ours: bool


def our_cache() -> Path:
    """Our cache folder."""
    return cache_folder(FOLDER)


def library_cache() -> Path:
    """Cache folder of `huggingface_hub` (`HF_HUB_CACHE`, `HF_HOME`)."""
    return Path(library_settings().HF_HUB_CACHE)


def package_cache() -> Path:
    """Cache folder of files out of packages."""
    return cache_folder("pypi")


def our_folder(listing: Listing) -> Path:
    """Folder of a commit in our cache; may not exist."""
    return our_cache() / listing.repository / listing.commit


def library_folder(listing: Listing) -> Path:
    """Folder of a commit in the library's cache; may not exist."""
    return _library_repository(listing.repository) / "snapshots" / listing.commit


def is_fetched(path: Path) -> bool:
    """Check whether a file is in one of the caches, where it must stay as it was fetched."""
    caches = (our_cache(), package_cache(), library_cache().absolute())
    return any(path.absolute().is_relative_to(cache) for cache in caches)


def snapshots() -> Iterator[Snapshot]:
    """Everything in our cache, then in the library's."""
    for folder in sorted(our_cache().glob("*/*/*/")):
        organization, name, commit = folder.parts[-3:]
        if GIT_HASH.fullmatch(commit):
            yield Snapshot(_listing_of(f"{organization}/{name}", folder), folder, is_ours=True)
    for folder in sorted(library_cache().glob("models--*--*/snapshots/*/")):
        _, organization, name = folder.parts[-3].split("--", 2)
        yield Snapshot(_listing_of(f"{organization}/{name}", folder), folder, is_ours=False)


def library_listing(reference: Reference) -> Listing | None:
    """Files that the library's cache holds of a revision, perhaps not all; None if none."""
    root, commit = _library_repository(reference.repository), reference.commit
    if commit is None:
        with suppress(OSError, UnicodeDecodeError):
            commit = (root / "refs" / (reference.revision or MAIN)).read_text("ascii").strip()
    if commit is None or not GIT_HASH.fullmatch(commit):
        return None
    found = _listing_of(reference.repository, root / "snapshots" / commit)
    return found if found.files else None


def link_existing(listing: Listing, file: RemoteFile) -> bool:
    """Make a file appear in our folder by a link to the same bytes in a cache; False if it cannot.

    The bytes are in the library's cache, for this commit or any, or in ours for another commit.
    """
    target = our_folder(listing) / file.path
    if has_size(target, file.num_bytes):
        return True
    for found, is_ours in _same_bytes(listing, file):
        if has_size(found, file.num_bytes):
            with suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.unlink(missing_ok=True)
                _link(found.resolve(), target, is_ours=is_ours)
                return True
    return False


def _listing_of(repository: str, folder: Path) -> Listing:
    """Files in a snapshot folder, with repository-relative names. Skips broken symlinks."""
    files = tuple(
        RemoteFile(path.relative_to(folder).as_posix(), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    )
    return Listing(repository, folder.name, files)


def _same_bytes(listing: Listing, file: RemoteFile) -> Iterator[tuple[Path, bool]]:
    """Paths that may hold the bytes of a file, each with whether it is in our cache."""
    yield library_folder(listing) / file.path, False
    if file.content is None:
        return
    yield _library_repository(listing.repository) / "blobs" / file.content, False
    for other in stored_listings(listing.repository):
        for twin in other.files:
            if twin.content == file.content and other.commit != listing.commit:
                yield our_folder(other) / twin.path, True


def _link(found: Path, target: Path, *, is_ours: bool) -> None:
    """Link a file: ours, which `rm` may remove, by a hard link; the library's by a symbolic one."""
    if is_ours:
        with suppress(OSError):
            os.link(found, target)
            return
    target.symlink_to(found)


def _library_repository(repository: str) -> Path:
    return library_cache() / f"models--{repository.replace('/', '--')}"
