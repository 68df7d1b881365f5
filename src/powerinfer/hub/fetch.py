"""Fetching models and checkpoints: files in a cache are used, missing ones are downloaded."""

import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from powerinfer._files import format_bytes
from powerinfer.errors import HubError
from powerinfer.hub import client
from powerinfer.hub.caches import library_folder, library_listing, link_existing, our_folder
from powerinfer.hub.choice import choose_checkpoint, choose_model
from powerinfer.hub.download import download, has_size, partial_path
from powerinfer.hub.listing import (
    LARGEST_LISTING,
    Listing,
    RemoteFile,
    read_listing,
    recall_listing,
    store_listing,
)
from powerinfer.hub.names import Reference, parse_reference
from powerinfer.hub.package_names import ModelName

__all__ = [
    "FetchedModel",
    "Progress",
    "begun_bytes",
    "check_room",
    "checkpoint_folder",
    "fetch_model",
    "report",
]

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (bytes present, bytes in all) during downloads."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model on this machine.

    Attributes:
        commit: version of a package.
        path: GGUF file, or its first part.
        fetched_bytes: bytes downloaded by the call that returned this.
    """

    reference: ModelName
    commit: str
    path: Path
    files: tuple[Path, ...]
    num_bytes: int
    fetched_bytes: int


def fetch_model(
    text: str, *, progress: Progress | None = None, renews: bool = False, fetches: bool = True
) -> FetchedModel:
    """Fetch the GGUF files of `hf:ORG/NAME[:QUANT][@REVISION]`, and its `activation` folder.

    Files in the cache of `huggingface_hub` are used there, others go to the user's cache folder.
    A model that is complete costs no request, since the repository's listing is stored.

    Args:
        renews: ask the Hub for the revision's current commit, unless it is one.
        fetches: False to refuse a model that is incomplete.

    Raises:
        HubError: the reference is malformed, does not mean exactly one model, or a file cannot be
            fetched or stored.
    """
    reference = parse_reference(text)
    listing = _find_listing(reference, renews=renews, asks=fetches)
    chosen = choose_model(listing, reference)
    folder, fetched = _provide(listing, chosen.files, reference, progress, fetches=fetches)
    return FetchedModel(
        reference=reference,
        commit=listing.commit,
        path=folder / chosen.parts[0].path,
        files=tuple(folder / file.path for file in chosen.files),
        num_bytes=sum(file.num_bytes for file in chosen.files),
        fetched_bytes=fetched,
    )


def checkpoint_folder(text: str, *, progress: Progress | None = None) -> Path:
    """Fetch the checkpoint `hf:ORG/NAME[@REVISION]` for `powerinfer convert`; returns its folder.

    The Hub is asked for the revision's current commit unless the revision is one; if it cannot be
    reached, a complete checkpoint in a cache will do. The folder belongs to a cache: only read it.
    It may hold other files too.

    Raises:
        HubError: the reference is malformed or has a QUANT, the repository has no checkpoint, or a
            file cannot be fetched or stored.
    """
    reference = parse_reference(text)
    listing = _find_listing(reference, renews=True, asks=True)
    files = choose_checkpoint(listing, reference)
    return _provide(listing, files, reference, progress, fetches=True)[0]


def _find_listing(reference: Reference, *, renews: bool, asks: bool) -> Listing:
    """Listing of a revision: stored, from the Hub, or of what the library's cache holds."""
    stored = recall_listing(reference)
    if stored is not None and (not renews or reference.commit):
        return stored
    problem = None
    if asks and not client.is_offline():
        try:
            return _ask(reference)
        except client.TransportError as error:
            problem = HubError(
                f"{reference.model}: {client.endpoint()} cannot be reached: {error}",
                remedy="check the network; HF_HUB_OFFLINE=1 uses what is in the caches",
            )
    found = stored or library_listing(reference)
    if found is None:
        raise problem or _not_here(reference, "it is")
    if problem is not None:
        _log.warning("%s; going on with what is in the caches", problem.message)
    return found


def _ask(reference: Reference) -> Listing:
    """Ask the Hub for the listing of a revision and store it."""
    retries = client.Retries(reference.model, advice="try again later")
    text = b""
    with client.stream(client.listing_url(reference), reference, retries) as response:
        for piece in response.pieces:
            text += piece
            if len(text) > LARGEST_LISTING:
                raise HubError(f"{reference.model}: the server's listing does not end")
    listing = read_listing(text, reference.repository)
    with suppress(HubError):
        # If our cache is not writable, the library's may still hold every file.
        store_listing(reference, listing)
    return listing


def _provide(
    listing: Listing,
    files: Sequence[RemoteFile],
    reference: Reference,
    progress: Progress | None,
    *,
    fetches: bool,
) -> tuple[Path, int]:
    """Complete a folder with these files; returns it and the number of bytes downloaded."""
    # Ours first: the library takes a moment to import.
    for folder_of in (our_folder, library_folder):
        folder = folder_of(listing)
        if all(has_size(folder / file.path, file.num_bytes) for file in files):
            return folder, 0
    folder = our_folder(listing)
    missing = [file for file in files if not link_existing(listing, file)]
    if missing and (not fetches or client.is_offline()):
        more = f" and {len(missing) - 1} more files are" if len(missing) > 1 else " is"
        raise _not_here(reference, f"{missing[0].path}{more}")
    to_fetch = sum(file.num_bytes - begun_bytes(folder / file.path, file) for file in missing)
    check_room(folder, to_fetch)
    total = sum(file.num_bytes for file in files)
    done = total - sum(file.num_bytes for file in missing)
    for file in missing:
        url = client.file_url(listing.repository, listing.commit, file.path)
        request = partial(client.stream, url, reference)
        arrived = partial(report, progress, done, total)
        download(request, file, folder / file.path, reference.model, arrived)
        done += file.num_bytes
    return folder, to_fetch


def report(progress: Progress | None, done: int, total: int, arrived: int) -> None:
    """Tell a caller who asked for it how many bytes have arrived, `done` of them earlier."""
    if progress is not None:
        progress(done + arrived, total)


def begun_bytes(target: Path, file: RemoteFile) -> int:
    """Size of what an earlier download left of a file."""
    try:
        return min(partial_path(target, file).stat().st_size, file.num_bytes)
    except OSError:
        return 0


def check_room(folder: Path, needed: int) -> None:
    """Check for free space before gigabytes are written.

    Raises:
        HubError: there is too little.
    """
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise HubError(
            f"{folder}: {format_bytes(needed)} have to be fetched, but only {format_bytes(free)} "
            "are free there; make room, or name a folder on another disk with XDG_CACHE_HOME"
        )


def _not_here(reference: Reference, what: str) -> HubError:
    why = f"fetch it: powerinfer pull {reference}"
    if client.is_offline():
        why = "and HF_HUB_OFFLINE forbids to fetch it"
    return HubError(f"{reference}: {what} not in the caches of this machine; {why}")
