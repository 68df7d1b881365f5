"""Fetching one file by ranges: resumed after a kill, checked, and renamed when it is whole.

What has arrived lies beside the file to be as `.NAME.HASH.incomplete`. The hash in the name is that
of the content, so a part is only ever continued with the same file. A process locks the part while
it writes; another that wants the same file waits.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from powerinfer._files import format_bytes
from powerinfer._locks import has_locks, lock, try_lock
from powerinfer._replacing import make_folder_of
from powerinfer.errors import HubError
from powerinfer.hub.answers import Retries, check_answer
from powerinfer.hub.listing import RemoteFile
from powerinfer.hub.names import Reference
from powerinfer.hub.session import Response, describe, stream, transport_error

__all__ = ["SUFFIX", "download", "has_size", "part_of"]

_log = logging.getLogger(__name__)

SUFFIX = ".incomplete"
"""How names of files end of which only a part has arrived."""

_LARGEST_RANGE = 16 << 30  # the Hub's servers refuse to send 50 GB at once
_PIECE_BYTES = 1 << 20
_LONGEST_NAME = 200  # a file name has at most 255 bytes; the rest of ours takes 25
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def part_of(target: Path, file: RemoteFile) -> Path:
    """Where the part of a file lies that has arrived."""
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])
    return target.with_name(f".{name}.{(file.content or 'unknown')[:12]}{SUFFIX}")


def download(
    address: str,
    file: RemoteFile,
    target: Path,
    reference: Reference,
    arrived: Callable[[int], None],
) -> None:
    """Fetch a file, or what is missing of it.

    Args:
        address: where it is.
        file: what is expected.
        target: path to give it; its folder is made.
        reference: to its model, for messages.
        arrived: called with the number of bytes that are there, each time that it changes.

    Raises:
        HubError: it cannot be fetched or stored, or is not the file that is expected. Unless its
            content is wrong, the part that arrived is kept.
    """
    make_folder_of(target, error=HubError)
    with _storing(target, file), _locked_part(target, file) as stream_to:
        if stream_to is None:
            arrived(file.num_bytes)
            return
        part = _Part(stream_to, file, arrived)
        part.load()
        was_begun = part.num_bytes > 0
        _receive(address, part, reference)
        if not part.is_right() and was_begun:
            # A computer that lost power may have kept the size of what it had not written.
            _log.warning("%s: a damaged part is fetched again", file.path)
            part.restart()
            _receive(address, part, reference)
        if not part.is_right():
            part_of(target, file).unlink()
            raise HubError(
                f"{reference.model}: {file.path} arrived damaged: its hash is not "
                f"{(file.content or '')[:12]}..., which the listing says; removed, try again"
            )
        os.fsync(stream_to.fileno())
        if not has_locks():
            stream_to.close()  # Windows renames no open file
        part_of(target, file).replace(target)


class _Part:
    """What has arrived of a file, and its hash."""

    def __init__(
        self, stream_to: BinaryIO, file: RemoteFile, arrived: Callable[[int], None]
    ) -> None:
        self.file = file
        self.num_bytes = 0
        self._stream, self._arrived = stream_to, arrived
        self._digest = file.new_digest()

    def load(self) -> None:
        """Read what an earlier process left."""
        self._stream.seek(0)
        while piece := self._stream.read(_PIECE_BYTES):
            self._count(piece)
        if self.num_bytes > self.file.num_bytes:
            self.restart()

    def append(self, piece: bytes) -> None:
        """Store what has come; a process that is killed loses nothing of it."""
        if self.num_bytes + len(piece) > self.file.num_bytes:
            raise HubError(
                f"{self.file.path}: the server sends more than the {self.file.num_bytes:,} bytes "
                "that the listing says"
            )
        self._stream.write(piece)
        self._stream.flush()
        self._count(piece)

    def restart(self) -> None:
        """Throw it away."""
        self._stream.seek(0)
        self._stream.truncate()
        self.num_bytes = 0
        self._digest = self.file.new_digest()
        self._arrived(0)

    def is_right(self) -> bool:
        """Whether a whole file has the content that was listed."""
        return self.file.content is None or self._digest.hexdigest() == self.file.content

    def _count(self, piece: bytes) -> None:
        self._digest.update(piece)
        self.num_bytes += len(piece)
        self._arrived(self.num_bytes)


def _receive(address: str, part: _Part, reference: Reference) -> None:
    """Fetch what is missing, in as many requests as it takes."""
    retries = Retries(
        f"{reference.model}: {part.file.path}",
        advice="what has arrived is kept: try again to go on with it",
    )
    farthest = part.num_bytes
    while part.num_bytes < part.file.num_bytes:
        problem = _request(address, part, reference, retries)
        if part.num_bytes > farthest:
            farthest = part.num_bytes
            retries.begin_anew()
        if problem is not None:
            retries.wait(problem)


def _request(address: str, part: _Part, reference: Reference, retries: Retries) -> str | None:
    """One request; returns what broke it off."""
    begin = part.num_bytes
    end = min(begin + _LARGEST_RANGE, part.file.num_bytes)
    try:
        with stream(address, {"range": f"bytes={begin}-{end - 1}"}) as response:
            if not check_answer(response, reference, retries):
                return None
            if _whole_file_comes(response, part.file, begin):
                end = part.file.num_bytes
                if begin:
                    part.restart()
            for piece in response.iter_raw():
                part.append(piece)
    except transport_error() as problem:
        return describe(problem)
    return None if part.num_bytes >= end else "the connection ended early"


def _whole_file_comes(response: Response, file: RemoteFile, begin: int) -> bool:
    """Whether a server ignores the range; checks the sizes that it says.

    Raises:
        HubError: it sends something else than was asked for.
    """
    encoding = response.headers.get("content-encoding", "identity")
    said = str(response.headers.get("content-length", ""))
    is_whole = response.status_code != 206
    if not is_whole:
        sent, _, said = str(response.headers.get("content-range", "")).partition("/")
        if sent.strip().removeprefix("bytes ").partition("-")[0] != str(begin):
            raise HubError(f"{file.path}: the server sends another range than was asked for")
    if encoding != "identity":
        raise HubError(f"{file.path}: the server sends it compressed ({encoding!r:.20})")
    if said.isdigit() and int(said) != file.num_bytes:
        raise HubError(
            f"{file.path}: the server has {int(said):,} bytes, but the listing says "
            f"{file.num_bytes:,}"
        )
    return is_whole


@contextmanager
def _storing(target: Path, file: RemoteFile) -> Iterator[None]:
    """Turn errors of the disk into one line; those of connections are none of these."""
    try:
        yield
    except OSError as problem:
        is_full = problem.errno in _FULL
        advice = (
            f"; {format_bytes(file.num_bytes)} are needed there. What has arrived is kept: make "
            "room and try again"
        )
        raise HubError(
            f"{target}: cannot write: {problem.strerror or problem}{advice if is_full else ''}"
        ) from None


@contextmanager
def _locked_part(target: Path, expected: RemoteFile) -> Iterator[BinaryIO | None]:
    """Open and lock a part; None if another process has made the file meanwhile."""
    path = part_of(target, expected)
    while True:
        with path.open("a+b") as file:
            _wait_for_lock(file, target)
            if not _is_still(path, file):
                continue  # renamed by the process that had the lock, or removed
            if has_size(target, expected.num_bytes):
                path.unlink()
                yield None
            else:
                yield file
            return


def has_size(path: Path, num_bytes: int) -> bool:
    """Whether a file is there and as long as it should be."""
    try:
        return path.is_file() and path.stat().st_size == num_bytes
    except OSError:
        return False


def _wait_for_lock(file: BinaryIO, target: Path) -> None:
    try:
        try_lock(file)
    except BlockingIOError:
        _log.warning("%s: another process fetches it; waiting", target.name)
        lock(file)
    except OSError as problem:
        _log.debug("%s: no locks here: %s", target, problem)


def _is_still(path: Path, file: BinaryIO) -> bool:
    with suppress(FileNotFoundError):
        return path.stat().st_ino == os.fstat(file.fileno()).st_ino
    return False
