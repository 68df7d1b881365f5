"""A mapped tensor of a checkpoint."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.gguf.value_types import shown

__all__ = ["STORAGE", "CheckpointTensor"]

STORAGE: dict[str, np.dtype[np.generic]] = {
    "f64": np.dtype("<f8"),
    "f32": np.dtype("<f4"),
    "f16": np.dtype("<f2"),
    "bf16": np.dtype("<u2"),
    "u8": np.dtype("u1"),
}
"""Supported formats and their numpy types; BF16 is stored as bits."""


@dataclass(frozen=True, eq=False)
class CheckpointTensor:
    """A mapped tensor.

    Attributes:
        format: key of `STORAGE`, or the name of an unsupported type.
        values: view of the mapped file with `shape`; empty for unsupported types.
    """

    name: str
    format: str
    values: npt.NDArray[np.generic] = field(repr=False)
    shape: tuple[int, ...]
    path: Path

    def __str__(self) -> str:
        return f"{self.path}: tensor {shown(self.name)}"
