"""Typed and range-checked reading of hyperparameters from GGUF metadata.

Every number is checked before it sizes anything; a bad file causes a `GGUFError` that names the
file, the key, the value and the expected range.
"""

import math
from dataclasses import dataclass

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, keys

__all__ = ["Metadata"]


@dataclass(frozen=True, slots=True)
class Metadata:
    """Keys of one architecture in a file."""

    file: GGUFFile
    architecture: str

    def has(self, name: str) -> bool:
        """Check for the key `<architecture>.<name>`."""
        return self.key(name) in self.file.metadata

    def is_array(self, name: str) -> bool:
        """Check for a key with several values."""
        return isinstance(self.file.metadata.get(self.key(name)), np.ndarray | list)

    def key(self, name: str) -> str:
        """Full name of a key of this architecture."""
        return f"{self.architecture}.{name}"

    @property
    def rms_epsilon(self) -> str:
        """Key of the epsilon of RMS norms; some files of Nemotron only have that of LayerNorms."""
        has_other = not self.has(keys.RMS_NORM_EPSILON) and self.has(keys.LAYER_NORM_EPSILON)
        return keys.LAYER_NORM_EPSILON if has_other else keys.RMS_NORM_EPSILON

    def integer(
        self, name: str, *, default: int | None = None, low: int = 1, high: int = 1 << 24
    ) -> int:
        """Read an integer within [low, high]; a missing key without default is an error."""
        key = self.key(name)
        value = (
            self.file.get_int(key) if default is None else self.file.get_int(key, default=default)
        )
        if not low <= value <= high:
            raise self.error(key, f"is {value}; expected an integer from {low} to {high}")
        return value

    def integers(
        self,
        name: str,
        num_layers: int,
        *,
        default: int | None = None,
        low: int = 1,
        high: int = 1 << 24,
    ) -> list[int]:
        """Read an integer within [low, high] for each layer, from an array or one for all.

        An array may also have entries for the blocks behind the layers, which are not run.
        """
        key = self.key(name)
        if not self.is_array(name):
            return [self.integer(name, default=default, low=low, high=high)] * num_layers
        values = self.file.get_array(key)
        num_blocks = self.file.get_int(self.key(keys.NUM_LAYERS), default=num_layers)
        if values.shape not in ((num_layers,), (num_blocks,)) or not np.issubdtype(
            values.dtype, np.integer
        ):
            raise self.error(
                key,
                f"has {values.size} values of type {values.dtype}; expected an integer for each of "
                f"{num_layers} layers",
            )
        values = values[:num_layers]
        for layer, value in enumerate(values.tolist()):
            if not low <= value <= high:
                raise self.error(
                    key, f"is {value} in layer {layer}; expected an integer from {low} to {high}"
                )
        return [int(value) for value in values.tolist()]

    def number(
        self, name: str, *, default: float | None = None, low: float = 0.0, high: float = 1e12
    ) -> float:
        """Read a finite number within [low, high]."""
        key = self.key(name)
        value = (
            self.file.get_float(key)
            if default is None
            else self.file.get_float(key, default=default)
        )
        if not (math.isfinite(value) and low <= value <= high):
            raise self.error(key, f"is {value}; expected a number from {low:g} to {high:g}")
        return value

    def string(self, name: str, *, default: str) -> str:
        """Read a string; `default` if the key is missing."""
        return self.file.get_str(self.key(name), default=default)

    def error(self, key: str, problem: str) -> GGUFError:
        """Build the error for a key of this file."""
        return GGUFError(f"{self.file.paths[0]}: key {key} {problem}")
