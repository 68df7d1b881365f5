"""Download of one file by ranges: resumed after a kill, checked, renamed when it is complete.

Until then the bytes are in `.NAME.HASH.incomplete` next to the target. HASH is that of the content,
so a partial file is only ever continued with the same file. A process locks it while it writes;
another one that wants the same file waits.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from powerinfer._files import format_bytes
from powerinfer._locks import has_locks, is_at, lock, try_lock
from powerinfer._replacing import make_folder_of
from powerinfer.errors import HubError
from powerinfer.hub.client import Response, Retries, TransportError
from powerinfer.hub.listing import RemoteFile

__all__ = ["SUFFIX", "Request", "download", "has_size", "partial_path", "wait_for_lock"]

_log = logging.getLogger(__name__)

SUFFIX = ".incomplete"
"""Suffix of partial files."""

_LARGEST_RANGE = 16 << 30  # the Hub's servers refuse to send 50 GB at once
_PIECE_BYTES = 1 << 20
_LONGEST_NAME = 200  # a file name has at most 255 bytes; the rest of ours takes 25
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


Request = Callable[..., AbstractContextManager[Response]]
"""Sends a request for a file, called with `Retries` and `range=`, the header of that name."""


def partial_path(target: Path, file: RemoteFile) -> Path:
    """Path of the partial file of a target."""
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])
    return target.with_name(f".{name}.{(file.content or 'unknown')[:12]}{SUFFIX}")


def has_size(path: Path, num_bytes: int) -> bool:
    """Check that a file exists and has a size."""
    try:
        return path.is_file() and path.stat().st_size == num_bytes
    except OSError:
        return False


def download(
    request: Request, file: RemoteFile, target: Path, name: str, arrived: Callable[[int], None]
) -> None:
    """Download a file, or what is missing of it, and call `arrived` with each new byte count.

    Args:
        name: of the model, for messages.

    Raises:
        HubError: it cannot be fetched or stored, or has another content than was listed. Unless
            the content is wrong, the partial file is kept.
    """
    make_folder_of(target, error=HubError)
    with _one_line_errors(target, file), _locked_partial(target, file) as locked:
        if locked is None:
            arrived(file.num_bytes)
            return
        partial = _Part(locked, file, arrived)
        was_begun = partial.num_bytes > 0
        _receive(request, partial, name)
        if not partial.is_right() and was_begun:
            # After a power failure a file may have its size but not its last bytes.
            _log.warning("%s: a damaged part is fetched again", file.path)
            partial.restart()
            _receive(request, partial, name)
        if not partial.is_right():
            partial_path(target, file).unlink()
            raise HubError(
                f"{name}: {file.path} arrived damaged: its hash is not "
                f"{(file.content or '')[:12]}... as listed; it was removed, try again"
            )
        os.fsync(locked.fileno())
        if not has_locks():
            locked.close()  # Windows renames no open file
        partial_path(target, file).replace(target)


class _Part:
    """A partial file and the hash of its bytes; begins with what an earlier process left."""

    def __init__(self, locked: BinaryIO, file: RemoteFile, arrived: Callable[[int], None]) -> None:
        self.file, self.num_bytes = file, 0
        self._locked, self._arrived = locked, arrived
        self._digest = file.new_digest()
        locked.seek(0)
        while piece := locked.read(_PIECE_BYTES):
            self._count(piece)
        if self.num_bytes > file.num_bytes:
            self.restart()

    def append(self, piece: bytes) -> None:
        """Store and flush a piece, so that a kill does not lose it."""
        if self.num_bytes + len(piece) > self.file.num_bytes:
            raise HubError(
                f"{self.file.path}: the server sends more than the {self.file.num_bytes:,} bytes "
                "that the listing says"
            )
        self._locked.write(piece)
        self._locked.flush()
        self._count(piece)

    def restart(self) -> None:
        self._locked.seek(0)
        self._locked.truncate()
        self.num_bytes = 0
        self._digest = self.file.new_digest()
        self._arrived(0)

    def is_right(self) -> bool:
        return self.file.content is None or self._digest.hexdigest() == self.file.content

    def _count(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.num_bytes += len(piece)
        self._arrived(self.num_bytes)


def _receive(request: Request, partial: _Part, name: str) -> None:
    """Fetch what is missing, in as many requests as it takes."""
    retries = Retries(
        f"{name}: {partial.file.path}",
        advice="what has arrived is kept: try again to go on with it",
    )
    # A server that ignores ranges sends the beginning again, which is no progress.
    farthest = partial.num_bytes
    while partial.num_bytes < partial.file.num_bytes:
        problem = _request(request, partial, retries)
        if partial.num_bytes > farthest:
            farthest = partial.num_bytes
            retries.reset()
        if problem is not None:
            retries.wait(problem)


def _request(request: Request, partial: _Part, retries: Retries) -> str | None:
    """Send one request and store its bytes; returns why it ended early."""
    begin = partial.num_bytes
    end = min(begin + _LARGEST_RANGE, partial.file.num_bytes)
    try:
        with request(retries, range=f"bytes={begin}-{end - 1}") as response:
            if not _is_range(response, partial.file, begin):
                end = partial.file.num_bytes
                if begin:
                    partial.restart()
            for piece in response.pieces:
                partial.append(piece)
    except TransportError as problem:
        return str(problem)
    return None if partial.num_bytes >= end else "the connection ended early"


def _is_range(response: Response, file: RemoteFile, begin: int) -> bool:
    """Tell a range from a whole file, which servers that ignore ranges send.

    Raises:
        HubError: it is another range, compressed, or of a file with another size.
    """
    encoding = response.headers.get("content-encoding", "identity")
    size = response.headers.get("content-length", "")
    is_range = response.status == 206
    if is_range:
        sent, _, size = response.headers.get("content-range", "").partition("/")
        if sent.strip().removeprefix("bytes ").partition("-")[0] != str(begin):
            raise HubError(f"{file.path}: the server sends another range than was asked for")
    if encoding != "identity":
        raise HubError(f"{file.path}: the server sends it compressed ({encoding!r:.20})")
    if size.isdigit() and int(size) != file.num_bytes:
        raise HubError(
            f"{file.path}: the server has {int(size):,} bytes, but the listing says "
            f"{file.num_bytes:,}"
        )
    return is_range


@contextmanager
def _one_line_errors(target: Path, file: RemoteFile) -> Iterator[None]:
    """Turn errors of the disk into a `HubError`; those of connections do not get here."""
    try:
        yield
    except OSError as problem:
        advice = ""
        if problem.errno in _DISK_FULL:
            advice = (
                f"; {format_bytes(file.num_bytes)} are needed there. What has arrived is kept: "
                "make room and try again"
            )
        raise HubError(f"{target}: cannot write: {problem.strerror or problem}{advice}") from None


@contextmanager
def _locked_partial(target: Path, expected: RemoteFile) -> Iterator[BinaryIO | None]:
    """Open and lock a partial file; None if another process has completed it meanwhile."""
    path = partial_path(target, expected)
    while True:
        with path.open("a+b") as file:
            wait_for_lock(file, target)
            if not is_at(path, file):
                continue  # the process that had the lock renamed or removed it
            if has_size(target, expected.num_bytes):
                path.unlink()
                yield None
            else:
                yield file
            return


def wait_for_lock(file: BinaryIO, target: Path) -> None:
    """Lock an open file; says so if another process, which fetches the target, holds the lock."""
    try:
        try_lock(file)
    except BlockingIOError:
        _log.warning("%s: another process fetches it; waiting", target.name)
        lock(file)
    except OSError as problem:
        _log.debug("%s: no locks here: %s", target, problem)
