"""A planted model that lies in memory and in no file, for machines without much disk or time.

Only a few layers are made; the others are copies of them, at addresses of their own, so that every
byte is read from memory as in a real model. What a copy adds to the residual stream has the
opposite sign of what its original adds, every second time, so that the stream does not run away.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from planting.random_rows import ByteRows
from planting.recipe import Knobs
from planting.shapes import PlantedShape, architecture_metadata
from planting.stream import PlantedStream
from powerinfer.gguf import GGUFFile, Tensor, open_gguf, write_gguf
from powerinfer.quant import QuantFormat

__all__ = ["planted_in_memory"]

_ADDS_TO_STREAM = ("ffn_down_t.weight", "attn_output.weight")
_NOWHERE = Path("memory")
# Where the sign bit of a block's scale is: byte within the block, and bytes of a block.
_SIGN_BYTE = {"f16": (1, 2), "f32": (3, 4), "q8_0": (1, 34), "q4_0": (1, 18)}


def planted_in_memory(
    shape: PlantedShape,
    knobs: Knobs,
    head_format: QuantFormat,
    *,
    num_made: int = 2,
    seed: int = 1234,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[GGUFFile, list[dict[str, float]]]:
    """Make a model.

    Args:
        shape: with the wanted number of layers.
        knobs: see `Knobs`; formats without a sign in their first bytes are refused.
        head_format: of the output head.
        num_made: layers really made.
        seed: of the weights.
        progress: told what is being made.

    Returns:
        A model as `open_gguf` returns it, and what was measured of the layers made.
    """
    if knobs.weight_format.name not in _SIGN_BYTE:
        raise SystemExit(f"error: {knobs.weight_format.name} cannot be made in memory")
    num_made = min(num_made, shape.num_layers)
    stream = PlantedStream(replace(shape, num_layers=num_made), knobs, head_format, seed)
    tensors: dict[str, Tensor] = {}
    for name, dims, format_name, data in stream.tensors():
        progress(name)
        tensors[name] = Tensor(name, tuple(dims), format_name, _bytes_of(data), _NOWHERE)
    for number in range(num_made, shape.num_layers):
        progress(f"layer {number}")
        source = f"blk.{number % num_made}."
        flips = number // num_made % 2 == 1
        for name in [name for name in tensors if name.startswith(source)]:
            copy = _copied(tensors[name], f"blk.{number}.{name.removeprefix(source)}", flips=flips)
            tensors[copy.name] = copy
    return replace(_header(shape), tensors=tensors), stream.statistics


def _bytes_of(data: Any) -> ByteRows:
    """A tensor's bytes from what a writer accepts: an array, or a function that makes pieces."""
    if not callable(data):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.concatenate([np.ascontiguousarray(piece).reshape(-1) for piece in data()])


def _copied(tensor: Tensor, name: str, *, flips: bool) -> Tensor:
    data = tensor.data.copy()
    if flips and name.endswith(_ADDS_TO_STREAM):
        byte, width = _SIGN_BYTE[tensor.format]
        data.reshape(-1, width)[:, byte] ^= np.uint8(0x80)
    return replace(tensor, name=name, data=data)


def _header(shape: PlantedShape) -> GGUFFile:
    """Metadata in the form that a file's has: written and read back."""
    metadata = architecture_metadata(shape, "planted in memory")
    metadata["powerinfer.sparse_threshold"] = np.float32(0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "header.gguf"
        write_gguf(path, metadata, [], magic="PWRI")
        return open_gguf(path)
