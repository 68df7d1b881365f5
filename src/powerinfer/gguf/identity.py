"""A cheap content hash of a model, for files that belong to it (calibration, plan)."""

import hashlib
import struct

import numpy as np

from powerinfer.gguf import keys
from powerinfer.gguf.file import GGUFFile
from powerinfer.gguf.value_types import MetadataValue

__all__ = ["model_identity"]

# A page: the unit in which the system reads files anyway.
_SAMPLE_BYTES = 4096


def model_identity(file: GGUFFile) -> str:
    """Hash a model without reading it whole.

    Covers magic, metadata, tensor table, and the first, middle and last 4 KiB of every tensor;
    hashing all of a 14 GB model would take 20 seconds. Independent of the path and of a calibration
    stored inside, since that carries this hash.

    Returns:
        The SHA-256 as 64 hexadecimal digits.
    """
    digest = hashlib.sha256(file.magic.encode())
    for key, value in file.metadata.items():
        if key != keys.CALIBRATION:
            digest.update(_text(key) + bytes([file.types[key]]) + _value(value))
    for tensor in file.tensors.values():
        digest.update(_text(f"{tensor.name}\0{tensor.shape}\0{tensor.format}"))
        last = max(0, tensor.num_bytes - _SAMPLE_BYTES)
        for start in (0, last // 2, last):
            digest.update(tensor.data[start : start + _SAMPLE_BYTES].data)
    return digest.hexdigest()


def _text(text: str) -> bytes:
    """Encode a text with its length, so that different lists of texts have different bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(value: MetadataValue) -> bytes:
    if isinstance(value, np.ndarray):
        return struct.pack("<Q", value.nbytes) + value.tobytes()
    if isinstance(value, list):
        return struct.pack("<Q", len(value)) + b"".join(map(_text, value))
    return _text(value if isinstance(value, str) else repr(value))
