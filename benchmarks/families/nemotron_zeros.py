"""Plants zeros into random models of Nemotron-H: a neuron fires with a given rate.

Number 0 of the residual stream is the same for all tokens, and no layer writes to it: column 0 of
`up`, whose rows are ungated, is a bias that sets the rate. Only norms before FFNs let it pass.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from families.nemotron_h import NemotronHShape

__all__ = ["PlantedZeros"]

ByteRows = npt.NDArray[np.uint8]
# Standard deviation of what a layer adds to the stream, whose own is nearly 1.
BRANCH_STD = 0.1
_BLOCK_BYTES, _SCALE_BYTES = 18, 2
# Of Q4_0: codes are nibbles less 8; drawn evenly they deviate by 4.61, without the lowest, which
# gives them a mean and so the stream, by 4.18.
_OFFSET, _LOWEST, _HIGHEST, _CODE_STD, _CENTRED_STD = 8, 0, 15, 4.61, 4.18
_INTO_STREAM = ("ssm_out.weight", "attn_output.weight", "ffn_down")


@dataclass(frozen=True)
class PlantedZeros:
    """Changes the rows of a model in Q4_0.

    Attributes:
        shape: sizes of the model.
        share: of the neurons that are zero for a token.
    """

    shape: NemotronHShape
    share: float

    def std(self, name: str, columns: int) -> float:
        """Standard deviation of a matrix's weights."""
        if name == "token_embd.weight":
            return 1.0
        is_branch = any(part in name for part in _INTO_STREAM)
        return (BRANCH_STD if is_branch else 1.0) / math.sqrt(columns)

    def change_rows(self, name: str, first: int, rows: ByteRows) -> None:
        """Set column 0, or row 0 of each matrix, in place.

        Args:
            name: of the tensor.
            first: number of the first row in the tensor.
            rows: blocks of Q4_0, u8[rows, bytes]; of a router f32 as bytes.
        """
        if "ffn_gate_inp" in name:
            rows[:, :4] = 0
            return
        if name.endswith("conv1d.weight") or name == "output.weight":
            return
        _centre(rows)
        if name == "token_embd.weight":
            _set_column_0(rows, _LOWEST)
        elif "ffn_up" in name:
            _set_column_0(rows, _HIGHEST)
        elif any(part in name for part in _INTO_STREAM):
            size = self.shape.hidden_size
            for row in rows[-first % size :: size]:
                row.reshape(-1, _BLOCK_BYTES)[:, :_SCALE_BYTES] = 0

    def norm(self, name: str) -> npt.NDArray[np.float32]:
        """Weights of a norm: only before FFNs the constant passes."""
        weights = np.ones(self.shape.hidden_size, np.float32)
        weights[0] = 0.0
        if name.endswith(".attn_norm.weight"):
            number = int(name.split(".")[1])
            if self.shape.pattern[number] in "-E":
                weights[0] = self._constant_weight(number)
        return weights

    def _constant_weight(self, number: int) -> float:
        """What makes the bias of `up` the quantile, for a stream that earlier layers widened."""
        stream = math.sqrt(1 + number * BRANCH_STD**2)
        constant = (_OFFSET - _LOWEST) / _CENTRED_STD / stream
        bias = (_HIGHEST - _OFFSET) / _CENTRED_STD / math.sqrt(self.shape.hidden_size)
        return NormalDist().inv_cdf(self.share) / (constant * bias)


def _centre(rows: ByteRows) -> None:
    """Let no code be the lowest, so that their mean is 0."""
    codes = rows.reshape(len(rows), -1, _BLOCK_BYTES)[:, :, _SCALE_BYTES:]
    codes[codes & 0xF == _LOWEST] |= _OFFSET
    codes[codes >> 4 == _LOWEST] |= _OFFSET << 4


def _set_column_0(rows: ByteRows, nibble: int) -> None:
    rows[:, _SCALE_BYTES] = rows[:, _SCALE_BYTES] & 0xF0 | nibble
