"""Tensors of a model file in the formats that the original PowerInfer supports."""

import re
from dataclasses import dataclass
from functools import partial

import numpy as np

from powerinfer.convert.encode_again import WITHOUT_BLOCKS, encoded_again, transposed
from powerinfer.convert.layout import ErrorSum, PackedTensor
from powerinfer.convert.powerinfer.format import EMBEDDING, HEAD, format_for, with_head
from powerinfer.errors import UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.gguf.rewrite import copied
from powerinfer.models import Architecture
from powerinfer.quant import get_format

__all__ = ["TensorOrigin", "find_origins", "is_predictor", "make_tensor"]

_PREDICTOR = re.compile(r"blk\.[0-9]+\.(?:fc[12]|fc[12]_exps)\.weight")
_DOWN = re.compile(r"(blk\.[0-9]+\.ffn_down)\.(weight|bias)")


@dataclass(frozen=True)
class TensorOrigin:
    """Source of a tensor to write."""

    tensor: Tensor
    is_transposed: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor to write."""
        return self.tensor.shape[::-1] if self.is_transposed else self.tensor.shape

    @property
    def sources(self) -> str:
        """File and tensor, for messages."""
        return f"{self.tensor.file}: tensor {self.tensor.name}"


def is_predictor(name: str) -> bool:
    """Return whether a tensor is part of a predictor, of experts too."""
    return _PREDICTOR.fullmatch(name) is not None


def find_origins(file: GGUFFile, architecture: Architecture) -> dict[str, TensorOrigin]:
    """Find the sources of all tensors to write except predictors, by new name."""
    found: dict[str, TensorOrigin] = {}
    for tensor in file.tensors.values():
        if is_predictor(tensor.name):
            continue
        down = _DOWN.fullmatch(tensor.name)
        if down is None:
            found[tensor.name] = TensorOrigin(tensor)
        else:
            found[f"{down[1]}_t.{down[2]}"] = TensorOrigin(tensor, down[2] == "weight")
    kept = with_head(found, architecture)
    embedding, head = (found.get(name) for name in (EMBEDDING, HEAD))
    if HEAD not in kept and embedding and head and not _are_equal(embedding, head):
        raise UnsupportedError(
            f"{head.sources}: PowerInfer's format has no {HEAD} in {architecture.name} files, and "
            "this one is not the embedding; leave the predictors out"
        )
    return kept


def _are_equal(one: TensorOrigin, other: TensorOrigin) -> bool:
    return one.tensor.format == other.tensor.format and np.array_equal(
        one.tensor.data, other.tensor.data
    )


def make_tensor(name: str, origin: TensorOrigin) -> PackedTensor:
    """Describe a tensor to write, in a format that the original computes correctly."""
    tensor, sources = origin.tensor, (origin.tensor,)
    target = get_format(format_for(name, origin.shape, tensor.format))
    error = None
    if tensor.format == target.name and not origin.is_transposed:
        chunks = copied(tensor).chunks
    elif tensor.format == target.name and target.name in WITHOUT_BLOCKS:
        chunks = partial(transposed, sources)
    else:
        get_format(tensor.format)
        error = ErrorSum()
        chunks = partial(encoded_again, sources, target, error, is_transposed=origin.is_transposed)
    return PackedTensor(name, origin.shape, target.name, chunks, sources, error)
