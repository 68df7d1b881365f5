"""One vector in a file of `torch.save`, read without torch.

Both containers are read: the zip archive (since torch 1.6) and the older one of pickles that raw
storages follow. Their layout was taken from files that torch writes; nothing in a file is ever
executed (`pickle_values`), and nothing large is read before its size is known to be right.
"""

import io
import zipfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer._files import read_small_file
from powerinfer.errors import PlacementError
from powerinfer.placement.pickle_values import parse_pickle
from powerinfer.placement.torch_tensor import BFLOAT16, LARGEST_BYTES, TorchVector, torch_vector

__all__ = ["read_torch_vector"]

_LONGEST_PICKLE = 64 << 10
# Entries of an archive; torch writes about seven. Each costs memory before it is looked at.
_MOST_ENTRIES = 1000
_ENTRY_MARK = b"PK\x01\x02"
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    OverflowError,
    RuntimeError,  # also NotImplementedError
    ValueError,
    KeyError,
    IndexError,
)
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_torch_vector(path: Path, length: int) -> npt.NDArray[np.float64]:
    """Read a tensor of one dimension.

    Args:
        path: what `torch.save(tensor, path)` wrote, of any real numeric type, on any device.
        length: that it must have.

    Returns:
        f64[length].

    Raises:
        PlacementError: it cannot be read, is damaged, or holds anything else.
    """
    data = read_small_file(path, LARGEST_BYTES, kind="activation file", error=PlacementError)
    try:
        if data.startswith(b"PK"):
            return _from_archive(data, length)
        return _from_legacy(data, length)
    except ValueError as error:
        raise PlacementError(
            f"{path}: expected a tensor of {length} numbers, written with torch.save: {error}"
        ) from None


def _from_archive(data: bytes, length: int) -> npt.NDArray[np.float64]:
    if data.count(_ENTRY_MARK) > _MOST_ENTRIES:
        raise ValueError(f"the archive has more than {_MOST_ENTRIES} entries")
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        pickles = [
            name
            for name in archive.namelist()
            if name.endswith("/data.pkl") and name.count("/") == 1
        ]
    except _ZIP_ERRORS as error:
        raise ValueError(f"the archive is damaged ({error!s:.100})") from None
    if len(pickles) != 1:
        raise ValueError(f"the archive has {len(pickles)} files data.pkl, must have one")
    folder = pickles[0].removesuffix("data.pkl")
    value, _ = parse_pickle(_member(archive, pickles[0], _LONGEST_PICKLE))
    vector = torch_vector(value, length)
    order = "little"
    if f"{folder}byteorder" in archive.namelist():
        order = _member(archive, f"{folder}byteorder", 16).decode("latin-1")
    if order not in ("little", "big"):
        raise ValueError(f"its byte order is {order!r}, must be 'little' or 'big'")
    storage = _member(archive, f"{folder}data/{vector.key}", vector.num_bytes)
    return _elements(storage, vector, length, ">" if order == "big" else "<")


def _member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """A whole file of the archive, of at most so many bytes."""
    try:
        info = archive.getinfo(name)
        if info.compress_type not in _ZIP_METHODS:
            raise ValueError("it is compressed in a way that torch does not use")
        if info.file_size > most:
            raise ValueError(f"it has {info.file_size} bytes, must have at most {most}")
        with archive.open(info) as file:
            return file.read(most)
    except _ZIP_ERRORS as error:
        raise ValueError(f"{name[:80]!r} in the archive cannot be read ({error!s:.100})") from None


def _from_legacy(data: bytes, length: int) -> npt.NDArray[np.float64]:
    position = 0
    values = []
    # Magic number, version, facts of the machine, the tensor, keys of the storages.
    for _ in range(5):
        value, taken = parse_pickle(data[position : position + _LONGEST_PICKLE])
        position += taken
        values.append(value)
        if values[0] != _LEGACY_MAGIC:
            raise ValueError("it is neither an archive nor begins as older files do")
    if values[1] != _LEGACY_VERSION:
        raise ValueError(f"its version is not {_LEGACY_VERSION}")
    vector = torch_vector(values[3], length)
    if not isinstance(values[4], list) or values[4] != [vector.key]:
        raise ValueError("it does not have exactly the one storage that its tensor names")
    # The number of elements precedes them; elements are little-endian on every machine.
    counted = int.from_bytes(data[position : position + 8], "little")
    storage = data[position + 8 : position + 8 + vector.num_bytes]
    if counted != vector.num_elements:
        raise ValueError(
            f"its storage has {counted} elements, its tensor names {vector.num_elements}"
        )
    return _elements(storage, vector, length, "<")


def _elements(
    storage: bytes, vector: TorchVector, length: int, order: str
) -> npt.NDArray[np.float64]:
    if len(storage) != vector.num_bytes:
        raise ValueError(f"its storage has {len(storage)} bytes, must have {vector.num_bytes}")
    is_short = vector.dtype == BFLOAT16
    stored = "u2" if is_short else vector.dtype.replace("?", "u1")
    numbers = np.frombuffer(storage, np.dtype(f"{order}{stored}"))
    chosen = numbers[vector.start + vector.stride * np.arange(length)]
    if is_short:
        # bf16 is the upper half of f32.
        chosen = (chosen.astype(np.uint32) << 16).view(np.float32)
    elif vector.dtype == "?":
        chosen = chosen != 0
    values: npt.NDArray[np.float64] = chosen.astype(np.float64)
    return values
