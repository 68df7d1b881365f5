"""Lookup of tensors by name and shape; all problems become one error."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.values import FloatArray

__all__ = ["Section", "TensorLookup", "alternate_rows", "decoded", "rows_of"]

_MAX_LISTED = 8
# A small file can claim millions of tensors: 1024 layers of 4096 experts.
_MAX_COLLECTED = 10_000


class TensorLookup:
    """Problems of all lookups in a file, collected instead of stopping at the first.

    Attributes:
        taken: full names of all tensors looked up, present or not.
        missing: full names of required tensors that are missing.
        misshapen: full names of tensors of the wrong shape, with their shape and the expected one.
    """

    def __init__(self, file: GGUFFile, required_biases: Collection[str]) -> None:
        self.file = file
        self.required_biases = required_biases
        self.taken: set[str] = set()
        self.missing: list[str] = []
        self.misshapen: dict[str, str] = {}

    def raise_problems(self) -> None:
        """Raise one error for everything missing or misshapen, if anything is."""
        path = self.file.paths[0]
        if self.file.missing_weights is not None:
            raise GGUFError(f"{path}: {self.file.missing_weights}")
        if self.missing:
            raise GGUFError(f"{path}: missing tensors: {_listed(self.missing)}")
        if self.misshapen:
            described = [f"{name} {problem}" for name, problem in self.misshapen.items()]
            raise GGUFError(f"{path}: tensors of the wrong shape: {_listed(described)}")


class Section:
    """Tensors whose names begin with a prefix: those of one block, or all outside the blocks.

    Attributes:
        tensors: tensors found, by name without the prefix.
    """

    def __init__(self, lookup: TensorLookup, prefix: str = "") -> None:
        self.lookup = lookup
        self.prefix = prefix
        self.tensors: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        """Check for a tensor in the file."""
        return self.prefix + name in self.lookup.file.tensors

    def linear(self, name: str, shape: tuple[int, ...]) -> None:
        """Add a weight and, if present or required, its bias with one number per row."""
        self.need(f"{name}.weight", shape)
        self._bias(name, shape[:-1])

    def down(self, name: str, shape: tuple[int, int], num_experts: int | None = None) -> None:
        """Add the down projection of a block, plain or, as `<name>_t`, transposed.

        Args:
            shape: (hidden_size, neurons) of one expert.
            num_experts: leading dimension of weights and biases; None without one.
        """
        hidden, neurons = shape
        all_experts = () if num_experts is None else (num_experts,)
        if not self.has(f"{name}_t.weight"):
            self.linear(name, (*all_experts, hidden, neurons))
            return
        # Its bias, which has nothing to transpose, is renamed as well; one under the old name must
        # not go unnoticed.
        self.need(f"{name}_t.weight", (*all_experts, neurons, hidden))
        self._bias(f"{name}_t", (*all_experts, hidden), is_required=self.has(f"{name}.bias"))

    def _bias(self, name: str, shape: tuple[int, ...], *, is_required: bool = False) -> None:
        is_required |= name.removesuffix("_t") in self.lookup.required_biases
        look_up = self.need if is_required else self.take
        look_up(f"{name}.bias", shape)

    def need(self, name: str, shape: tuple[int, ...]) -> None:
        """Add a required tensor."""
        if not self.has(name):
            self.lookup.missing.append(self.prefix + name)
            if len(self.lookup.missing) > _MAX_COLLECTED:
                self.lookup.raise_problems()
        self.take(name, shape)

    def take(self, name: str, shape: tuple[int, ...]) -> None:
        """Add an optional tensor."""
        full_name = self.prefix + name
        self.lookup.taken.add(full_name)
        tensor = self.lookup.file.tensors.get(full_name)
        if tensor is None:
            return
        if tuple(tensor.shape) != shape:
            self.lookup.misshapen[full_name] = f"{list(tensor.shape)}, not {list(shape)}"
            return
        self.tensors[name] = tensor

    def complain(self, name: str, reason: str) -> None:
        """Report a tensor that does not fit the others, if the file has it."""
        if self.has(name):
            shape = self.lookup.file.tensors[self.prefix + name].shape
            self.lookup.misshapen[self.prefix + name] = f"{list(shape)}, {reason}"


def rows_of(tensor: Tensor, start: int, count: int, name: str) -> Tensor:
    """Rows [start, start + count) of a tensor; rows are contiguous in every format."""
    row_bytes = len(tensor.data) // tensor.shape[0]
    return replace(
        tensor,
        name=name,
        shape=(count, *tensor.shape[1:]),
        data=tensor.data[start * row_bytes : (start + count) * row_bytes],
    )


def alternate_rows(tensor: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Copies of the rows of two matrices that take turns, `count` rows each."""
    groups = tensor.data.reshape(-1, 2, count * len(tensor.data) // tensor.shape[0])
    shape = (tensor.shape[0] // 2, *tensor.shape[1:])
    first, second = (np.ascontiguousarray(groups[:, place]).reshape(-1) for place in (0, 1))
    return replace(tensor, shape=shape, data=first), replace(tensor, shape=shape, data=second)


def decoded(tensor: Tensor, values: FloatArray, name: str | None = None) -> Tensor:
    """Copy of a tensor with these values in f32."""
    data = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1)
    return replace(tensor, name=name or tensor.name, shape=values.shape, format="f32", data=data)


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
