"""One tensor of a checkpoint, mapped and not read yet."""

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
"""The formats that we read, and how numpy holds their numbers: those of BF16 as their bits."""


@dataclass(frozen=True, eq=False)
class CheckpointTensor:
    """One tensor.

    Attributes:
        name: in the checkpoint.
        format: key of `STORAGE`, or the name of a type that we do not read.
        values: of `shape`, as `STORAGE` says, a view of the mapped file; empty of other types.
        shape: outermost dimension first.
        path: of its file.
    """

    name: str
    format: str
    values: npt.NDArray[np.generic] = field(repr=False)
    shape: tuple[int, ...]
    path: Path

    def __str__(self) -> str:
        return f"{self.path}: tensor {shown(self.name)}"
