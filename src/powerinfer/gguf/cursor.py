"""A bounds-checked reading position in the header of a file.

Nothing is allocated before the bytes to fill it are known to exist. Every problem is a `GGUFError`
that names the file and the value being read.
"""

import mmap
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.errors import GGUFError

__all__ = ["Cursor"]

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Sequential reader of little-endian values in a mapped file of `size` bytes."""

    __slots__ = ("_buffer", "path", "position", "size")

    def __init__(self, buffer: mmap.mmap, path: Path) -> None:
        self._buffer = buffer
        self.path = path
        self.position = 0
        self.size = len(buffer)

    def error(self, where: str, problem: str) -> GGUFError:
        """Build the error for a problem at `where`."""
        return GGUFError(f"{self.path}: {where}: {problem}")

    def take(self, num_bytes: int, where: str) -> int:
        """Advance over `num_bytes`, which must exist; return the offset of the first."""
        left = self.size - self.position
        if num_bytes > left:
            raise self.error(
                where,
                f"needs {num_bytes} bytes at offset {self.position}, but the file ends after "
                f"{left} more; it is truncated or damaged",
            )
        start = self.position
        self.position += num_bytes
        return start

    def u32(self, where: str) -> int:
        """Read an unsigned 32-bit integer."""
        value: int = _U32.unpack_from(self._buffer, self.take(4, where))[0]
        return value

    def u64(self, where: str) -> int:
        """Read an unsigned 64-bit integer."""
        value: int = _U64.unpack_from(self._buffer, self.take(8, where))[0]
        return value

    def count(self, where: str, bytes_each: int) -> int:
        """Read the number of entries that follow, each of at least `bytes_each` bytes."""
        count = self.u64(where)
        left = self.size - self.position
        if count * bytes_each > left:
            raise self.error(
                where,
                f"claims {count} entries of at least {bytes_each} bytes, but the file has only "
                f"{left} bytes left; it is truncated or damaged",
            )
        return count

    def raw(self, num_bytes: int, where: str) -> bytes:
        """Read bytes."""
        start = self.take(num_bytes, where)
        return self._buffer[start : start + num_bytes]

    def text(self, where: str) -> str:
        """Read a string: u64 length, then UTF-8 bytes."""
        data = self.raw(self.u64(f"{where}, length"), where)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self.error(where, f"{data[:40]!r} is not valid UTF-8 ({error.reason})") from None

    def texts(self, count: int, where: str) -> list[str]:
        """Read `count` consecutive strings.

        A vocabulary of 128 thousand tokens has 400 thousand strings in two arrays, so `text` is
        inlined in this loop, which halves its time.
        """
        buffer, size, position = self._buffer, self.size, self.position
        unpack = _U64.unpack_from
        last_start = size - 8
        found: list[str] = []
        append = found.append
        try:
            for _ in range(count):
                if position > last_start:
                    break
                start = position + 8
                end = start + unpack(buffer, position)[0]
                if end > size:
                    break
                append(buffer[start:end].decode())
                position = end
        except UnicodeDecodeError as error:
            item = f"{where}, item {len(found)}"
            bad = bytes(error.object[:40])
            raise self.error(item, f"{bad!r} is not valid UTF-8 ({error.reason})") from None
        self.position = position
        if len(found) < count:
            self.text(f"{where}, item {len(found)}")  # raises the error of that item
        return found

    def numbers(
        self, dtype: np.dtype[np.generic], count: int, where: str
    ) -> npt.NDArray[np.generic]:
        """Read `count` numbers into a new read-only array."""
        start = self.take(count * dtype.itemsize, where)
        # `frombuffer` refuses to start at the end of the buffer.
        array = (
            np.frombuffer(self._buffer, dtype, count, start).copy() if count else np.empty(0, dtype)
        )
        array.flags.writeable = False
        return array
