"""Batches of tokens from arrays that may be larger than memory, in an order that a seed decides."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.train.predictors.layer_data import LayerData

__all__ = ["BLOCK", "Batches", "read_tokens", "unpack"]

BLOCK = 64
"""Neighbouring tokens that are read together: files are slow to read one token at a time."""

# Blocks shuffled together: a batch mixes tokens from all over them.
_BLOCKS = 512


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
        self._group: tuple[int, tuple[Tensor, Tensor]] | None = None

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        """Read inputs f16[size, hidden_size] and bits u8[size, ceil(num_neurons / 8)] of a step."""
        epoch, rest = divmod(step, self._epoch_steps)
        group, place = divmod(rest, self._group_steps)
        held = self._read(epoch * self._num_groups + group, step)
        part = slice(place * self.size, (place + 1) * self.size)
        return held[0][part], held[1][part]

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

    def _read(self, number: int, step: int) -> tuple[Tensor, Tensor]:
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


def read_tokens(
    data: LayerData, tokens: npt.NDArray[np.int64], place: str
) -> tuple[Tensor, Tensor]:
    """Read inputs f16[n, hidden_size] and bits u8[n, ceil(num_neurons / 8)] of tokens i64[n]."""
    order = np.argsort(tokens)
    back = np.argsort(order)
    inputs = np.asarray(data.inputs[tokens[order]])
    bad = ~np.isfinite(inputs).all(axis=1)
    if bad.any():
        token = int(tokens[order][bad][0])
        raise NumericsError(
            f"layer {data.number}, {place}: the input of token {token} is NaN or infinite"
        )
    fired = np.asarray(data.fired[tokens[order]])
    return torch.from_numpy(inputs[back]), torch.from_numpy(fired[back])


def unpack(fired: Tensor, num_neurons: int) -> Tensor:
    """Unpack bits to numbers 0 and 1: u8[n, num_neurons]."""
    shifts = torch.arange(8, dtype=torch.uint8, device=fired.device)
    return ((fired[:, :, None] >> shifts) & 1).flatten(1)[:, :num_neurons]
