"""Reading safetensors files: a bounds-checked header and views of the mapped file.

Format: u64 length of the header, the header in JSON, then the data of all tensors without gaps. The
header has `dtype`, `shape` and `data_offsets` (begin and end in the data) for each tensor;
`__metadata__` is informative. Everything is checked before any data is read.
"""

import json
import math
import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.convert.checkpoint.tensor import STORAGE, CheckpointTensor
from powerinfer.errors import CheckpointError
from powerinfer.gguf.value_types import shown

__all__ = ["read_safetensors"]

# A published file with 20,000 expert tensors has 3 MB; parsing needs about ten times the bytes.
_LARGEST_HEADER = 32 << 20
_MOST_DIMENSIONS = 8
_LARGEST_DIMENSION = 1 << 48
_METADATA = "__metadata__"
_LENGTH_BYTES = 8

# Bytes per number and our name of the type; types without a name may occur but are not converted.
_TYPES = {
    "BOOL": (1, ""),
    "U8": (1, "u8"),
    "I8": (1, ""),
    "F8_E4M3": (1, ""),
    "F8_E5M2": (1, ""),
    "F8_E8M0": (1, ""),
    "U16": (2, ""),
    "I16": (2, ""),
    "F16": (2, "f16"),
    "BF16": (2, "bf16"),
    "U32": (4, ""),
    "I32": (4, ""),
    "F32": (4, "f32"),
    "U64": (8, ""),
    "I64": (8, ""),
    "F64": (8, "f64"),
}


def read_safetensors(path: Path) -> dict[str, CheckpointTensor]:
    """Map the tensors of a file, by name and in the order of their data.

    Raises:
        CheckpointError: the file cannot be opened, or its header is damaged; the message names file
            and tensor.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < _LENGTH_BYTES:
                raise CheckpointError(f"{path}: has {size} bytes; too short for a safetensors file")
            buffer = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    header_bytes = int.from_bytes(buffer[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + header_bytes
    if start > size:
        raise CheckpointError(
            f"{path}: its header should have {header_bytes} bytes, the file has {size} in all; "
            "it is truncated, or not a safetensors file"
        )
    if header_bytes > _LARGEST_HEADER:
        raise CheckpointError(
            f"{path}: its header has {header_bytes} bytes; at most {_LARGEST_HEADER} are read"
        )
    entries = _parse(path, buffer[_LENGTH_BYTES:start])
    spans = {name: _Span(path, name, entry) for name, entry in entries.items()}
    _check_spans(path, spans, size - start)
    data = np.frombuffer(buffer, np.uint8, offset=start)
    ordered = sorted(spans.items(), key=lambda item: item[1].begin)
    return {name: span.tensor(data) for name, span in ordered}


def _parse(path: Path, header: bytes) -> dict[str, object]:
    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise CheckpointError(f"{path}: {shown(twice)} is in the header twice")
        return found

    try:
        entries = json.loads(header, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its header is not JSON: {error!s:.80}") from None
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path}: its header is not a JSON object")
    entries.pop(_METADATA, None)
    return entries


class _Span:
    """Checked entry of a tensor: its type, shape and place in the data."""

    def __init__(self, path: Path, name: str, entry: object) -> None:
        self.path, self.name = path, name
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise self.error("expected dtype, shape and data_offsets, and nothing else")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _TYPES:
            raise self.error(f"type {dtype!r:.40} is unknown; known are {', '.join(_TYPES)}")
        if not _are_sizes(shape, _MOST_DIMENSIONS):
            raise self.error(f"shape {shape!r:.80}: expected a list of at most {_MOST_DIMENSIONS}")
        if not _are_sizes(offsets, 2) or len(offsets) != 2:
            raise self.error(f"data_offsets {offsets!r:.80}: expected begin and end")
        item_bytes, self.format = _TYPES[dtype]
        self.dtype, self.shape = dtype, tuple(shape)
        self.begin, self.end = offsets
        wanted = math.prod(shape) * item_bytes
        if self.end - self.begin != wanted:
            raise self.error(
                f"{dtype} of shape {list(shape)} takes {wanted} bytes; data_offsets "
                f"{offsets} hold {self.end - self.begin}"
            )

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: tensor {shown(self.name)}: {problem}")

    def tensor(self, data: npt.NDArray[np.uint8]) -> CheckpointTensor:
        """View the tensor in the file's data."""
        if not self.format:
            empty = np.empty(0, np.uint8)
            return CheckpointTensor(self.name, self.dtype, empty, self.shape, self.path)
        # The data may be unaligned; numpy reads that too.
        raw = data[self.begin : self.end].view(STORAGE[self.format])
        values = raw.reshape(self.shape)
        return CheckpointTensor(self.name, self.format, values, self.shape, self.path)


def _are_sizes(value: object, most: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= most
        and all(type(each) is int and 0 <= each <= _LARGEST_DIMENSION for each in value)
    )


def _check_spans(path: Path, spans: dict[str, _Span], data_bytes: int) -> None:
    """Check that the tensors fill the data without gaps or overlaps."""
    end = 0
    for span in sorted(spans.values(), key=lambda each: (each.begin, each.end)):
        if span.begin != end:
            what = "overlaps the previous one" if span.begin < end else "leaves a gap before it"
            raise span.error(f"its data, from byte {span.begin}, {what}, which ends at {end}")
        end = span.end
    if end != data_bytes:
        what = "is truncated" if end > data_bytes else "has more than its tensors"
        raise CheckpointError(
            f"{path}: its tensors take {end} bytes, the file holds {data_bytes}: it {what}"
        )
