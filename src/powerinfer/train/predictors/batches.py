"""Batches of tokens from arrays that may be larger than memory, in an order that a seed decides."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.train.predictors.layer_data import LayerData

__all__ = ["BLOCK", "Batches", "ExpertShare", "TokenBlock", "read_firing", "read_tokens"]

BLOCK = 64
"""Neighbouring tokens that are read together: files are slow to read one token at a time."""

# Blocks shuffled together: a batch mixes tokens from all over them.
_BLOCKS = 512


@dataclass(frozen=True, slots=True, eq=False)
class ExpertShare:
    """The tokens of a block that are given to one expert; in a dense FFN all of them.

    Attributes:
        neurons: the expert's, among those of the layer.
        tokens: places in the block, i64[n], each once.
        fires: u8[n, expert_size] of 0 and 1.
    """

    neurons: slice
    tokens: Tensor | slice
    fires: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class TokenBlock:
    """Some tokens of a layer's data; arrays are those of `LayerData`."""

    inputs: Tensor
    fired: Tensor
    experts: Tensor | None
    expert_size: int

    def part(self, tokens: slice | npt.NDArray[np.int64]) -> "TokenBlock":
        """Some of the tokens."""
        experts = None if self.experts is None else self.experts[tokens]
        return TokenBlock(self.inputs[tokens], self.fired[tokens], experts, self.expert_size)

    def to(self, device: torch.device) -> "TokenBlock":
        """The same on a device."""
        experts = None if self.experts is None else self.experts.to(device)
        inputs, fired = self.inputs.to(device), self.fired.to(device)
        return TokenBlock(inputs, fired, experts, self.expert_size)

    def shares(self) -> Iterator[ExpertShare]:
        """The tokens of each expert that has any."""
        size = self.expert_size
        if self.experts is None:
            yield ExpertShare(slice(0, size), slice(None), _unpack(self.fired, size))
            return
        num_used = self.experts.shape[1]
        chosen = self.experts.flatten().long()
        pairs, start = torch.argsort(chosen, stable=True), 0
        bits = self.fired.reshape(len(chosen), -1)
        for expert, count in enumerate(torch.bincount(chosen).tolist()):
            own = pairs[start : start + count]
            start += count
            if count:
                neurons = slice(expert * size, (expert + 1) * size)
                yield ExpertShare(neurons, own // num_used, _unpack(bits[own], size))


class Batches:
    """The training tokens in endless shuffled epochs; a step's batch depends on its number alone.

    Blocks of neighbouring tokens are shuffled and read a group at a time; the tokens of a group are
    shuffled again. Tokens that fill no batch at the end of a group wait for the next epoch.
    """

    def __init__(self, data: LayerData, size: int, seed: int) -> None:
        self.size = min(size, data.num_learned)
        self._data, self._seed = data, seed
        blocks = max(1, data.num_learned // BLOCK)
        self._num_groups = -(-blocks // _BLOCKS)
        self._group: tuple[int, TokenBlock] | None = None

    def __getitem__(self, step: int) -> TokenBlock:
        """Read the tokens of a step."""
        epoch, rest = divmod(step, self._epoch_steps)
        group, place = divmod(rest, self._group_steps)
        held = self._read(epoch * self._num_groups + group, step)
        return held.part(slice(place * self.size, (place + 1) * self.size))

    @property
    def _group_steps(self) -> int:
        """Batches of each group; all groups but the last of an epoch are equally large."""
        return max(1, self._group_tokens // self.size)

    @property
    def _group_tokens(self) -> int:
        return max(1, self._data.num_learned // self._num_groups)

    @property
    def _epoch_steps(self) -> int:
        return self._num_groups * self._group_steps

    def _read(self, number: int, step: int) -> TokenBlock:
        if self._group is None or self._group[0] != number:
            found = read_tokens(self._data, self._tokens(number), f"step {step + 1}")
            self._group = number, found
        return self._group[1]

    def _tokens(self, number: int) -> npt.NDArray[np.int64]:
        """Token numbers of a group, counted over all epochs: i64[group_tokens]."""
        epoch, group = divmod(number, self._num_groups)
        blocks = np.arange(0, self._data.num_learned, BLOCK)
        np.random.default_rng((self._seed, epoch)).shuffle(blocks)
        tokens = (blocks[:, None] + np.arange(BLOCK)).ravel()
        tokens = tokens[tokens < self._data.num_learned]
        part = tokens[group * self._group_tokens : (group + 1) * self._group_tokens]
        return np.random.default_rng((self._seed, epoch, group + 1)).permutation(part)


def read_tokens(data: LayerData, tokens: npt.NDArray[np.int64], place: str) -> TokenBlock:
    """Read tokens i64[n]; `place` says in errors where."""
    order = np.argsort(tokens)
    back = np.argsort(order)
    inputs = np.asarray(data.inputs[tokens[order]])
    bad = ~np.isfinite(inputs).all(axis=1)
    if bad.any():
        token = int(tokens[order][bad][0])
        raise NumericsError(
            f"layer {data.number}, {place}: the input of token {token} is NaN or infinite"
        )
    found = read_firing(data, tokens[order])
    return replace(found.part(back), inputs=torch.from_numpy(inputs[back]))


def read_firing(data: LayerData, tokens: npt.NDArray[np.int64]) -> TokenBlock:
    """Read tokens i64[n], which rise, without their inputs."""
    fired, experts = torch.from_numpy(np.asarray(data.fired[tokens])), None
    if data.experts is not None:
        experts = torch.from_numpy(np.asarray(data.experts[tokens]))
    inputs = torch.empty(len(tokens), 0, dtype=torch.float16)
    return TokenBlock(inputs, fired, experts, data.sizes.expert_size)


def _unpack(fired: Tensor, num_neurons: int) -> Tensor:
    """Unpack bits to numbers 0 and 1: u8[n, num_neurons]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=fired.device)
    return ((fired[:, :, None] >> shifts) & 1).flatten(1)[:, :num_neurons]
