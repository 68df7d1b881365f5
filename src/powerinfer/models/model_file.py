"""A model file, opened and read once: what every stage of loading starts from."""

import time
from dataclasses import dataclass
from pathlib import Path

from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.models.architecture import Architecture, architecture_of
from powerinfer.models.config import ModelConfig, read_config
from powerinfer.values import Activation

__all__ = ["ModelFile"]


@dataclass(frozen=True, slots=True)
class ModelFile:
    """An open file with the facts of its model.

    Attributes:
        file: must stay open as long as the model is used; the weights are views of it.
        architecture: facts of the model's family.
        config: sizes and constants.
        read_s: seconds it took to open and read.
    """

    file: GGUFFile
    architecture: Architecture
    config: ModelConfig
    read_s: float = 0.0

    @classmethod
    def of(cls, file: GGUFFile, activation: Activation | str | None = None) -> "ModelFile":
        """Read the facts of an open file.

        Args:
            activation: overrides the activation the file implies, for example `fatrelu:0.01`.

        Raises:
            GGUFError: the file lacks something or contradicts itself.
            UnsupportedError: its architecture or activation is not implemented.
        """
        architecture = architecture_of(file)
        return cls(file, architecture, read_config(file, architecture, activation))

    @classmethod
    def open(cls, path: Path, activation: Activation | str | None = None) -> "ModelFile":
        """Open a file, the first part of a split one, or a folder with one model.

        Raises:
            GGUFError: as for `of`, or there is no such file.
            UnsupportedError: as for `of`.
        """
        started = time.perf_counter()
        opened = cls.of(open_gguf(path), activation)
        seconds = time.perf_counter() - started
        return cls(opened.file, opened.architecture, opened.config, seconds)
