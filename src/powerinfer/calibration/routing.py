"""The neurons that may run for each token: all of a dense FFN, those of its chosen experts else.

Arrays over these *candidates* have a column for each neuron of a token's chosen experts: column
j * n + i is neuron i of the j-th of them, of n neurons each. If every expert is chosen, and in a
dense FFN, columns are neuron ids.
"""

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from powerinfer.ops.backend import Backend, SomeFFN
from powerinfer.ops.protocol import ActiveIds
from powerinfer.values import BoolArray, FloatArray, IntArray

__all__ = ["Routing"]

_ScalarT = TypeVar("_ScalarT", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Routing:
    """The chosen experts of some tokens of one layer.

    Attributes:
        experts: i32[num_tokens, num_used], ascending; a dense FFN is one expert, always chosen.
        weights: f32[num_tokens, num_used], factors of their outputs.
    """

    experts: IntArray
    weights: FloatArray
    num_experts: int
    num_neurons: int

    @classmethod
    def of(
        cls,
        ops: Backend,
        ffn: SomeFFN,
        x: FloatArray,
        router_input: FloatArray | None = None,
        is_prompt: BoolArray | None = None,
    ) -> "Routing":
        """Ask the router of a block, if it has one, about x f32[num_tokens, hidden_size].

        `router_input` is what the router sees if that is not `x`; `is_prompt` bool[num_tokens]
        says which tokens belong to prompts.
        """
        if ffn.router is None:
            experts, weights = np.zeros((len(x), 1), np.int32), np.ones((len(x), 1), np.float32)
        else:
            experts, weights = ops.route(
                x if router_input is None else router_input, ffn, is_prompt
            )
        return cls(experts, weights, ffn.num_experts, ops.matrix_shape(ffn.up.matrix)[0])

    @property
    def num_candidates(self) -> int:
        """Neurons that may run for a token."""
        return int(self.experts.shape[1]) * self._expert_size

    def rows(self, tokens: npt.NDArray[np.intp] | slice) -> "Routing":
        """The same for some of the tokens."""
        return replace(self, experts=self.experts[tokens], weights=self.weights[tokens])

    def place(self, place: int) -> "Routing":
        """The same with one of the chosen experts only, by its place among them."""
        one = slice(place, place + 1)
        return replace(self, experts=self.experts[:, one], weights=self.weights[:, one])

    def of_neurons(self, values: npt.NDArray[_ScalarT]) -> npt.NDArray[_ScalarT]:
        """Pick each candidate's value of [num_neurons]; fits arrays of candidates."""
        if self._has_all:
            return values
        by_expert = values.reshape(self.num_experts, self._expert_size)
        return by_expert[self.experts].reshape(len(self.experts), self.num_candidates)

    def take(self, values: npt.NDArray[_ScalarT]) -> npt.NDArray[_ScalarT]:
        """Candidates' columns: [num_tokens, num_candidates] of [num_tokens, num_neurons]."""
        if self._has_all:
            return values
        by_expert = values.reshape(len(values), self.num_experts, self._expert_size)
        tokens = np.arange(len(values))[:, np.newaxis]
        return by_expert[tokens, self.experts].reshape(len(values), self.num_candidates)

    def mask(self, active: ActiveIds) -> npt.NDArray[np.bool_]:
        """bool[num_tokens, num_candidates], where a neuron is listed; others are ignored."""
        return self.take(active.mask(self.num_neurons))

    def ids(self, mask: npt.NDArray[np.bool_]) -> ActiveIds:
        """Ids of the neurons that are true in a bool[num_tokens, num_candidates]."""
        listed = ActiveIds.of_mask(mask)
        if self._has_all:
            return listed
        place, neuron = np.divmod(listed.ids, self._expert_size)
        tokens = np.repeat(np.arange(len(mask)), np.diff(listed.offsets))
        ids = self.experts[tokens, place] * self._expert_size + neuron
        return ActiveIds(listed.offsets, ids.astype(np.int32))

    def count(self, mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """i64[num_neurons], tokens with a true bool[num_tokens, num_candidates]."""
        return self._add_up(mask, np.int64)

    def total(self, values: FloatArray) -> npt.NDArray[np.float64]:
        """f64[num_neurons], sums over tokens of f32[num_tokens, num_candidates]."""
        return self._add_up(values, np.float64)

    def _add_up(
        self, values: npt.NDArray[np.generic], dtype: type[_ScalarT]
    ) -> npt.NDArray[_ScalarT]:
        by_place = values.reshape(*self.experts.shape, self._expert_size)
        sums = np.zeros((self.num_experts, self._expert_size), dtype)
        for expert in np.unique(self.experts):
            sums[expert] = by_place[self.experts == expert].sum(axis=0, dtype=dtype)
        return sums.reshape(-1)

    def weigh(self, values: FloatArray) -> FloatArray:
        """f32[num_tokens, num_candidates], each times the weight of its expert."""
        by_place = values.reshape(*self.experts.shape, self._expert_size)
        weighed: FloatArray = by_place * self.weights[:, :, np.newaxis]
        return weighed.reshape(values.shape)

    @property
    def _expert_size(self) -> int:
        return self.num_neurons // self.num_experts

    @property
    def _has_all(self) -> bool:
        """Every expert is chosen: columns are ids."""
        return int(self.experts.shape[1]) == self.num_experts
