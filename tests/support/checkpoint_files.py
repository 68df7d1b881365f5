"""Checkpoints for tests: written without torch, from arrays."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["BF16", "bf16", "safetensors_bytes", "write_checkpoint", "write_safetensors"]

Array = npt.NDArray[Any]

_NAMES = {"f2": "F16", "f4": "F32", "f8": "F64", "u1": "U8", "i8": "I64"}


class BF16:
    """Numbers in BF16.

    Attributes:
        bits: u16[...].
    """

    def __init__(self, bits: npt.NDArray[np.uint16]) -> None:
        self.bits = bits


def bf16(values: Array) -> BF16:
    """Numbers cut off to BF16."""
    return BF16((np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16))


def safetensors_bytes(tensors: Mapping[str, Array | BF16]) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        array = values.bits if isinstance(values, BF16) else values
        dtype = "BF16" if isinstance(values, BF16) else _NAMES[array.dtype.str[1:]]
        end = len(data) + array.nbytes
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(data), end],
        }
        data += np.ascontiguousarray(array).tobytes()
    packed = json.dumps(header).encode()
    return len(packed).to_bytes(8, "little") + packed + data


def write_safetensors(path: Path, tensors: Mapping[str, Array | BF16]) -> Path:
    """Write a safetensors file."""
    path.write_bytes(safetensors_bytes(tensors))
    return path


def write_checkpoint(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array | BF16],
    *,
    shards: int = 1,
) -> Path:
    """Write a folder as `save_pretrained` does."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return folder
    weight_map: dict[str, str] = {}
    for number in range(shards):
        part = dict(list(tensors.items())[number::shards])
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        write_safetensors(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
