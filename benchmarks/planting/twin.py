"""The plain GGUF of a planted model that peers can run: the same weights, or as many bytes.

Falcon stays Falcon, with `ffn_down` instead of its transpose. Llama and Bamboo shapes become a
`llama` file; llama.cpp runs SiLU on them, so only the speed means something. OPT, which llama.cpp
does not know, becomes a `llama` file whose three FFN matrices are filled with the bytes of OPT's
two, cut at a whole number of blocks.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from planting.random_rows import ByteRows, row_blocks
from planting.shapes import PlantedShape, architecture_metadata
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, open_gguf, write_gguf
from powerinfer.quant import get_format

__all__ = ["write_twin"]

_BLOCK = 32
_KEPT_ONLY_BY_OPT = ("position_embd.weight", ".bias")


def write_twin(source: Path, target: Path, shape: PlantedShape) -> None:
    """Write the twin of a PowerInfer file made by `planted.py`.

    Args:
        source: the PowerInfer file.
        target: the file to make.
        shape: what `source` was made from, with its number of layers.
    """
    file = open_gguf(source)
    is_opt = shape.architecture == "opt"
    neurons = shape.intermediate_size * 2 // 3 // _BLOCK * _BLOCK if is_opt else None
    architecture = "falcon" if shape.is_parallel else "llama"
    metadata = architecture_metadata(shape, target.stem, architecture=architecture, neurons=neurons)
    tensors = _opt_tensors(file, neurons) if neurons else _tensors(file)
    write_gguf(target, metadata, tensors)


def _is_predictor(name: str) -> bool:
    return name.endswith(("fc1.weight", "fc2.weight"))


def _same(tensor: Tensor) -> TensorSpec:
    return tensor.name, tensor.shape, tensor.format, tensor.data


def _tensors(file: GGUFFile) -> Iterator[TensorSpec]:
    for name, tensor in file.tensors.items():
        if _is_predictor(name):
            continue
        if name.endswith("ffn_down_t.weight"):
            plain = name.replace("ffn_down_t", "ffn_down")
            yield plain, tensor.shape[::-1], tensor.format, _transposed(tensor)
        else:
            yield _same(tensor)


def _transposed(tensor: Tensor) -> Callable[[], Iterator[ByteRows]]:
    """Rows of the transpose, a block of columns at a time; block formats are encoded again."""
    chosen = get_format(tensor.format)
    rows, columns = tensor.shape
    per_block = chosen.block_size

    def data() -> Iterator[ByteRows]:
        blocks = tensor.data.reshape(rows, columns // per_block, chosen.block_bytes)
        for part in row_blocks(columns):
            taken = blocks[:, part.start // per_block : -(-part.stop // per_block)]
            if per_block == 1:
                yield np.ascontiguousarray(taken.transpose(1, 0, 2)).reshape(-1)
                continue
            values = chosen.decode(np.ascontiguousarray(taken).reshape(rows, -1))
            yield chosen.encode(np.ascontiguousarray(values.T)).reshape(-1)

    return data


def _opt_tensors(file: GGUFFile, neurons: int) -> Iterator[TensorSpec]:
    """A llama-shaped file of (nearly) the bytes of an OPT file; the head stays tied."""
    for name, tensor in file.tensors.items():
        if _is_predictor(name) or name.endswith(_KEPT_ONLY_BY_OPT):
            continue
        if name.endswith("ffn_up.weight"):
            down = file.tensor(name.replace("ffn_up", "ffn_down_t"))
            yield from _three_matrices(name.removesuffix("ffn_up.weight"), tensor, down, neurons)
        elif not name.endswith("ffn_down_t.weight"):
            yield _same(tensor)


def _three_matrices(prefix: str, up: Tensor, down: Tensor, neurons: int) -> Iterator[TensorSpec]:
    """Gate, up and down with as many weights as `up` and `down` of an ungated FFN have."""
    rows = np.concatenate([up.data, down.data]) if len(up.data) < 1 << 20 else None
    row_bytes = len(up.data) // up.shape[0]
    for number, name in enumerate(("ffn_gate", "ffn_up", "ffn_down")):
        shape = (neurons, up.shape[1]) if name != "ffn_down" else (up.shape[1], neurons)
        start, stop = number * neurons * row_bytes, (number + 1) * neurons * row_bytes
        yield f"{prefix}{name}.weight", shape, up.format, _joined(up, down, rows, start, stop)


def _joined(
    first: Tensor, second: Tensor, whole: ByteRows | None, start: int, stop: int
) -> ByteRows | Callable[[], Iterator[ByteRows]]:
    """Bytes [start, stop) of two tensors in a row."""
    if whole is not None:
        return whole[start:stop]
    middle = len(first.data)

    def data() -> Iterator[ByteRows]:
        yield first.data[start : min(stop, middle)]
        yield second.data[max(0, start - middle) : max(0, stop - middle)]

    return data
