"""Builds GGUF files byte by byte, without the writer under test, so that they can be wrong."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def text(value: str | bytes) -> bytes:
    """A length and the bytes."""
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(key: str | bytes, value_type: int, value: bytes) -> bytes:
    """One metadata entry."""
    return text(key) + struct.pack("<I", value_type) + value


def u32(key: str, value: int) -> bytes:
    """A u32 entry."""
    return entry(key, U32, struct.pack("<I", value))


def array(element_type: int, count: int, data: bytes) -> bytes:
    """The value of an array entry."""
    return struct.pack("<IQ", element_type, count) + data


def tensor(name: str | bytes, dims: Sequence[int], ggml_type: int = 0, offset: int = 0) -> bytes:
    """One row of the tensor table; dimensions in file order, fastest first."""
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return text(name) + shape + struct.pack("<IQ", ggml_type, offset)


@dataclass
class Image:
    """A file to be: everything can be set to something wrong."""

    entries: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    num_tensors: int | None = None
    num_entries: int | None = None
    alignment: int = 32

    def header(self) -> bytes:
        """Everything before the padding."""
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_entries = len(self.entries) if self.num_entries is None else self.num_entries
        counts = struct.pack("<IQQ", self.version, num_tensors, num_entries)
        return self.magic + counts + b"".join(self.entries) + b"".join(self.tensors)

    def __bytes__(self) -> bytes:
        header = self.header()
        return header + b"\0" * (-len(header) % self.alignment) + self.data

    def write(self, folder: Path, name: str = "model.gguf") -> Path:
        """Write the file and return its path."""
        path = folder / name
        path.write_bytes(bytes(self))
        return path
