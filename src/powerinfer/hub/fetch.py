"""From a reference to files on this machine: what is there is used, what is missing is fetched."""

import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from powerinfer._files import format_bytes
from powerinfer.errors import HubError
from powerinfer.hub.answers import Retries, UnreachableError, check_answer
from powerinfer.hub.choice import choose_checkpoint, choose_model
from powerinfer.hub.download import download, has_size, part_of
from powerinfer.hub.listing import LARGEST_LISTING, Listing, RemoteFile, read_listing
from powerinfer.hub.names import Reference, parse_reference
from powerinfer.hub.places import adopt, library_folder, library_listing, our_folder
from powerinfer.hub.session import (
    address_of_file,
    address_of_listing,
    describe,
    is_offline,
    stream,
    transport_error,
)
from powerinfer.hub.stored import recall_listing, store_listing

__all__ = ["FetchedModel", "Progress", "checkpoint_folder", "fetch_model"]

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Told (bytes that are there, bytes in all) while files are fetched."""


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A model that is on this machine now.

    Attributes:
        reference: what was asked for.
        commit: that the revision is.
        path: of the GGUF file, or of its first part.
        files: all of its files.
        num_bytes: of all files.
        fetched_bytes: of those that were fetched now; less where a part of a file was there.
    """

    reference: Reference
    commit: str
    path: Path
    files: tuple[Path, ...]
    num_bytes: int
    fetched_bytes: int


def fetch_model(
    text: str, *, progress: Progress | None = None, renews: bool = False, fetches: bool = True
) -> FetchedModel:
    """The GGUF file of a reference, with the other parts and PowerInfer's `activation` folder.

    What `huggingface_hub` has in its cache is used there; the rest lies in the user's cache folder.
    A repository whose listing is stored is not asked again, so a model that is there costs no
    request.

    Args:
        text: `hf:ORG/NAME[:QUANT][@REVISION]`.
        progress: told how far it is.
        renews: ask the Hub what the revision is now, unless it is a commit.
        fetches: False to refuse a model of which something is missing.

    Raises:
        HubError: the reference is none, nothing or more than one model fits it, or a file cannot
            be fetched or stored.
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
    """A folder with the checkpoint of a reference, for `powerinfer convert hf:ORG/NAME`.

    It holds `config.json`, `generation_config.json`, the files of the tokenizer and its chat
    templates, an `activation` folder if there is one, and the weights: safetensors, or
    `pytorch_model*.bin` where there are none, with their index. Nothing else of the repository is
    fetched; other files may be there. They are found, fetched, resumed and checked as those of
    `fetch_model`, and the Hub is asked once what the revision is now, unless it is a commit, or
    cannot be reached and everything is there.

    Args:
        text: `hf:ORG/NAME[@REVISION]`.
        progress: told (bytes that are there, bytes in all).

    Returns:
        The folder; its files may be links, and belong to a cache: read them only.

    Raises:
        HubError: the reference is none or names a QUANT, the repository has no checkpoint (it
            names `powerinfer pull` if there are GGUF files), or a file cannot be fetched or stored.
    """
    reference = parse_reference(text)
    listing = _find_listing(reference, renews=True, asks=True)
    files = choose_checkpoint(listing, reference)
    return _provide(listing, files, reference, progress, fetches=True)[0]


def _find_listing(reference: Reference, *, renews: bool, asks: bool) -> Listing:
    """What the repository holds: as the Hub says, or as it said last."""
    stored = recall_listing(reference)
    if stored is not None and (not renews or reference.commit):
        return stored
    if asks and not is_offline():
        try:
            return _ask(reference)
        except UnreachableError as problem:
            found = stored or library_listing(reference)
            if found is None:
                raise
            _log.warning("%s; going on with what is in the caches", problem.message)
            return found
    found = stored or library_listing(reference)
    if found is None:
        raise _not_here(reference, "it is")
    return found


def _ask(reference: Reference) -> Listing:
    """Ask the Hub for the files of a revision, and remember the answer where that is possible."""
    listing = read_listing(_request_listing(reference), reference.repository)
    with suppress(HubError):
        # Where our cache cannot be written, the library's may hold everything.
        store_listing(reference, listing)
    return listing


def _request_listing(reference: Reference) -> bytes:
    retries = Retries(reference.model, advice="try again later")
    address = address_of_listing(reference)
    while True:
        text = b""
        try:
            with stream(address) as response:
                if not check_answer(response, reference, retries):
                    continue
                for piece in response.iter_raw():
                    text += piece
                    if len(text) > LARGEST_LISTING:
                        raise HubError(f"{reference.model}: the server's listing does not end")
                return text
        except transport_error() as problem:
            host = address.partition("/api/")[0]
            raise UnreachableError(
                f"{reference.model}: {host} cannot be reached: {describe(problem)}",
                remedy="check the network; HF_HUB_OFFLINE=1 uses what is in the caches",
            ) from None


def _provide(
    listing: Listing,
    files: Sequence[RemoteFile],
    reference: Reference,
    progress: Progress | None,
    *,
    fetches: bool,
) -> tuple[Path, int]:
    """A folder that holds these files, and how many bytes were fetched for that."""
    for folder in _folders(listing):
        if all(has_size(folder / file.path, file.num_bytes) for file in files):
            return folder, 0
    folder = our_folder(listing.repository, listing.commit)
    missing = [file for file in files if not adopt(listing, file)]
    if missing and (not fetches or is_offline()):
        more = f" and {len(missing) - 1} more files are" if len(missing) > 1 else " is"
        raise _not_here(reference, f"{missing[0].path}{more}")
    begun = {file: _begun_bytes(folder / file.path, file) for file in missing}
    _check_room(folder, sum(file.num_bytes - begun[file] for file in missing))
    total = sum(file.num_bytes for file in files)
    done = total - sum(file.num_bytes for file in missing)
    for file in missing:
        address = address_of_file(listing.repository, listing.commit, file.path)
        report = _reporter(progress, done, total)
        download(address, file, folder / file.path, reference, report)
        done += file.num_bytes
    return folder, sum(file.num_bytes - begun[file] for file in missing)


def _folders(listing: Listing) -> Iterator[Path]:
    yield our_folder(listing.repository, listing.commit)
    # Comes second because where it is says a library that takes a moment to import.
    yield library_folder(listing.repository, listing.commit)


def _reporter(progress: Progress | None, done: int, total: int) -> Callable[[int], None]:
    """What tells the progress of one file as that of all."""
    if progress is None:
        return lambda _: None
    return lambda arrived: progress(done + arrived, total)


def _begun_bytes(target: Path, file: RemoteFile) -> int:
    try:
        return min(part_of(target, file).stat().st_size, file.num_bytes)
    except OSError:
        return 0


def _check_room(folder: Path, needed: int) -> None:
    """Check before gigabytes are fetched that the disk has room for them."""
    existing = folder
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise HubError(
            f"{folder}: {format_bytes(needed)} have to be fetched, but only {format_bytes(free)} "
            "are free there; make room, or name a folder on another disk with XDG_CACHE_HOME"
        )


def _not_here(reference: Reference, what: str) -> HubError:
    why = (
        "and HF_HUB_OFFLINE forbids to fetch it"
        if is_offline()
        else f"fetch it: powerinfer pull {reference}"
    )
    return HubError(f"{reference}: {what} not in the caches of this machine; {why}")
