"""A cheap content identity of a model, for files that belong to it (calibration, plan)."""

import hashlib

from powerinfer.gguf.file import GGUFFile

__all__ = ["model_identity"]

# A page: the unit in which the system reads the file anyway.
_SAMPLE_BYTES = 4096


def model_identity(file: GGUFFile) -> str:
    """Hash what tells models apart without reading them whole.

    Covers the size of every file, its header with the tensor table, and the first, middle and last
    4 KiB of every tensor; hashing all of a 14 GB model would take 20 seconds. The name and place
    of the files do not matter.

    Returns:
        The SHA-256 as 64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for part in file.parts:
        digest.update(f"{len(part.buffer)} {part.header_bytes}\n".encode())
        digest.update(memoryview(part.buffer)[: part.header_bytes])
    for tensor in file.tensors.values():
        last = max(0, tensor.num_bytes - _SAMPLE_BYTES)
        for start in (0, last // 2, last):
            digest.update(tensor.data[start : start + _SAMPLE_BYTES].data)
    return digest.hexdigest()
