"""Lookup of tensors by name and shape; all problems become one error."""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.values import FloatArray

__all__ = ["TensorLookup", "decoded", "rows_of"]

_MAX_LISTED = 8
# A small file can claim millions of tensors: 1024 layers of 4096 experts.
_MAX_COLLECTED = 10_000


class TensorLookup:
    """Looks tensors up, collecting problems instead of stopping at the first."""

    def __init__(self, file: GGUFFile, required_biases: Collection[str]) -> None:
        self.file = file
        self._required_biases = required_biases
        self.taken: set[str] = set()
        """Full names of all tensors looked up, present or not."""
        self.missing: list[str] = []
        """Full names of required tensors that are missing."""
        self.misshapen: dict[str, str] = {}
        """Full names of tensors of the wrong shape, with their shape and the expected one."""

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

    def has(self, name: str) -> bool:
        """Check for a tensor of this full name."""
        return name in self.file.tensors

    def linear(
        self, tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], prefix: str
    ) -> None:
        """Add a weight and, if present or required, its bias with one number per row."""
        self.need(tensors, f"{name}.weight", shape, prefix)
        self.bias(tensors, name, shape[:-1], prefix)

    def bias(
        self,
        tensors: dict[str, Tensor],
        name: str,
        shape: tuple[int, ...],
        prefix: str,
        *,
        is_required: bool = False,
    ) -> None:
        """Add the bias of a weight, if present or required."""
        is_required |= name.removesuffix("_t") in self._required_biases
        look_up = self.need if is_required else self.take
        look_up(tensors, f"{name}.bias", shape, prefix)

    def down(
        self,
        tensors: dict[str, Tensor],
        name: str,
        shape: tuple[int, int],
        prefix: str,
        *,
        num_experts: int | None = None,
    ) -> None:
        """Add the down projection of a block, plain or, as `<name>_t`, transposed.

        Args:
            shape: (hidden_size, neurons) of one expert.
            num_experts: leading dimension of weights and biases; None without one.
        """
        hidden, neurons = shape
        all_experts = () if num_experts is None else (num_experts,)
        if not self.has(f"{prefix}{name}_t.weight"):
            self.linear(tensors, name, (*all_experts, hidden, neurons), prefix)
            return
        # Its bias, which has nothing to transpose, is renamed as well; one under the old name must
        # not go unnoticed.
        self.need(tensors, f"{name}_t.weight", (*all_experts, neurons, hidden), prefix)
        has_bias = self.has(f"{prefix}{name}.bias")
        self.bias(tensors, f"{name}_t", (*all_experts, hidden), prefix, is_required=has_bias)

    def need(
        self, tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], prefix: str = ""
    ) -> None:
        """Add a required tensor."""
        if not self.has(prefix + name):
            self.missing.append(prefix + name)
            if len(self.missing) > _MAX_COLLECTED:
                self.raise_problems()
        self.take(tensors, name, shape, prefix)

    def take(
        self, tensors: dict[str, Tensor], name: str, shape: tuple[int, ...], prefix: str = ""
    ) -> None:
        """Add an optional tensor."""
        self.taken.add(prefix + name)
        tensor = self.file.tensors.get(prefix + name)
        if tensor is None:
            return
        if tuple(tensor.shape) != shape:
            self.misshapen[prefix + name] = f"{list(tensor.shape)}, not {list(shape)}"
            return
        tensors[name] = tensor

    def complain(self, name: str, reason: str) -> None:
        """Report a tensor that does not fit the others, if the file has it."""
        if self.has(name):
            self.misshapen[name] = f"{list(self.file.tensors[name].shape)}, {reason}"


def rows_of(tensor: Tensor, start: int, count: int, name: str) -> Tensor:
    """Rows [start, start + count) of a tensor; rows are contiguous in every format."""
    row_bytes = len(tensor.data) // tensor.shape[0]
    return replace(
        tensor,
        name=name,
        shape=(count, *tensor.shape[1:]),
        data=tensor.data[start * row_bytes : (start + count) * row_bytes],
    )


def decoded(tensor: Tensor, values: FloatArray, name: str | None = None) -> Tensor:
    """Copy of a tensor with these values in f32."""
    data = np.ascontiguousarray(values, "<f4").view(np.uint8).reshape(-1)
    return replace(tensor, name=name or tensor.name, shape=values.shape, format="f32", data=data)


def _listed(names: list[str]) -> str:
    more = len(names) - _MAX_LISTED
    return ", ".join(names[:_MAX_LISTED]) + (f" and {more} more" if more > 0 else "")
