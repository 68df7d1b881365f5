"""Tiny models with some of their tensors or keys changed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, open_gguf, write_gguf
from powerinfer.values import FloatArray
from tiny_models import TinyModel, write_model

__all__ = ["Change", "numbers", "rewrite", "rewrite_all", "spec"]

Change = Callable[[Tensor], TensorSpec | None]


def rewrite(
    path: Path,
    model: TinyModel,
    change: Change,
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
) -> GGUFFile:
    """Write a tiny model with some tensors changed (None leaves one out)."""

    def change_one(tensor: Tensor) -> Sequence[TensorSpec]:
        new = change(tensor)
        return () if new is None else (new,)

    return rewrite_all(path, model, change_one, seed, metadata)


def rewrite_all(
    path: Path,
    model: TinyModel,
    change: Callable[[Tensor], Sequence[TensorSpec]],
    seed: int = 0,
    metadata: dict[str, Any] | None = None,
) -> GGUFFile:
    """Write a tiny model with each tensor replaced by any number of others.

    Args:
        path: folder; `plain.gguf` is the model, `changed.gguf` the changed one.
        model: its recipe.
        change: of each tensor.
        seed: of the recipe.
        metadata: keys to replace; None as a value leaves one out.
    """
    file = open_gguf(write_model(path / "plain.gguf", model, seed))
    tensors = [new for tensor in file.tensors.values() for new in change(tensor)]
    keys = file.metadata | (metadata or {})
    kept = {key: value for key, value in keys.items() if value is not None}
    write_gguf(path / "changed.gguf", kept, tensors, magic=file.magic)
    return open_gguf(path / "changed.gguf")


def spec(tensor: Tensor) -> TensorSpec:
    """A tensor as it is."""
    return tensor.name, tensor.shape, tensor.format, tensor.data


def numbers(name: str, values: FloatArray) -> TensorSpec:
    """An f32 tensor of these values."""
    return name, values.shape, "f32", np.ascontiguousarray(values).tobytes()
