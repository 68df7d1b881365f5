"""Text files of any size, plain or compressed, as pieces that are cut at the ends of lines."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from powerinfer._extras import how_to_install
from powerinfer.errors import PowerInferError

__all__ = ["SEPARATOR", "Piece", "read_pieces", "text_identity", "text_size"]

SEPARATOR = "<|endoftext|>"
"""Alone on a line, it separates two documents."""

PIECE_BYTES = 1 << 18
_SEPARATOR_LINE = f"\n{SEPARATOR}\n".encode()
# Four bytes of a compressed file can hold 128 KiB of text.
_COMPRESSED_BYTES = 1 << 6
_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a text.

    Attributes:
        text: at most `PIECE_BYTES`. It ends after a separator, else before the end of a line, else
            before a space.
        end: byte of the text where the next piece begins.
        done_bytes: bytes of the file, which may be compressed, read up to the end of this piece.
    """

    text: str
    end: int
    done_bytes: int
    is_last: bool


def read_pieces(path: Path, start: int = 0) -> Iterator[Piece]:
    """Read a text in constant memory.

    The file is UTF-8, or zstd of that if its name ends in `.zst`. Beginning at the byte where a
    piece ends yields the pieces after it.

    Raises:
        PowerInferError: the file cannot be read, is no file, is damaged or not UTF-8.
    """
    with _open(path) as file:
        chunks = _chunks(path, file, start)
        rest = bytearray()
        is_end = False
        while not is_end or rest:
            while len(rest) < PIECE_BYTES and not is_end:
                chunk = next(chunks, b"")
                is_end = not chunk
                rest += chunk
            if not rest:
                return
            block = bytes(rest[:PIECE_BYTES])
            is_last = is_end and len(rest) <= PIECE_BYTES
            end = len(block) if is_last else _cut(block)
            text = _decode(path, block[:end], start)
            yield Piece(text, start + end, file.tell(), is_last)
            del rest[:end]
            start += end


def text_size(paths: Sequence[Path]) -> int:
    """Bytes of all files as stored."""
    total = 0
    for path in paths:
        with _open(path) as file:
            total += file.seek(0, 2)
    return total


def text_identity(paths: Sequence[Path]) -> str:
    """Identify texts by the sizes of the files, in order, and samples of them: a SHA-256."""
    digest = hashlib.sha256()
    for path in paths:
        with _open(path) as file:
            size = file.seek(0, 2)
            digest.update(size.to_bytes(8, "little"))
            last = max(0, size - _SAMPLE_BYTES)
            for number in range(_SAMPLES):
                file.seek(last * number // (_SAMPLES - 1))
                digest.update(file.read(_SAMPLE_BYTES))
    return digest.hexdigest()


@contextmanager
def _open(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file: others have no size, and cannot be read again from the middle."""
    try:
        if path.exists() and not path.is_file():
            raise PowerInferError(f"{path}: expected a file of text; others cannot be resumed")
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise PowerInferError(f"{path}: no such file") from None
    except OSError as error:
        raise PowerInferError(f"{path}: cannot be read: {error.strerror or error}") from None


def _chunks(path: Path, file: BinaryIO, start: int) -> Iterator[bytes]:
    """The bytes of the text from `start` on, in chunks that are not empty."""
    if path.suffix != ".zst":
        file.seek(start)
        while chunk := file.read(PIECE_BYTES):
            yield chunk
        return
    for chunk in _decompress(path, file):
        if len(chunk) > start:
            yield chunk[start:]
        start = max(0, start - len(chunk))


def _decompress(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise PowerInferError(
            f"{path}: reading compressed text needs zstandard; {how_to_install('train')}"
        ) from None
    frame = zstandard.ZstdDecompressor().decompressobj()
    is_inside = False
    try:
        while compressed := file.read(_COMPRESSED_BYTES):
            while compressed:
                yield frame.decompress(compressed)
                is_inside, compressed = not frame.eof, frame.unused_data
                if frame.eof:
                    frame = zstandard.ZstdDecompressor().decompressobj()
    except zstandard.ZstdError as error:
        raise PowerInferError(f"{path}: is damaged, or not compressed with zstd: {error}") from None
    if is_inside:
        raise PowerInferError(f"{path}: is cut off: its last frame has no end")


def _cut(block: bytes) -> int:
    """The end of a block after which the text can go on."""
    if (found := block.rfind(_SEPARATOR_LINE)) >= 0:
        return found + len(_SEPARATOR_LINE)
    # Line ends stay together, and with a separator after them.
    if lines := block[: max(block.rfind(b"\n"), 0)].rstrip(b"\r\n"):
        return len(lines)
    if (found := block.rfind(b" ")) > 0:
        return found
    # Before the last character, which may continue; bytes that are not UTF-8 are found later.
    end = len(block) - 1
    while end > len(block) - 4 and block[end] & 0xC0 == 0x80:
        end -= 1
    return max(end, 1)


def _decode(path: Path, block: bytes, start: int) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PowerInferError(
            f"{path}: byte {start + error.start} is not UTF-8; expected a text"
        ) from None
