"""Value types shared by every layer: arrays, JSON, activations and the batch of one step.

Nothing here computes, opens a file or knows a device.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int32]
ByteArray: TypeAlias = npt.NDArray[np.uint8]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None
"""A value that `json.loads` returns."""
JSONObject: TypeAlias = dict[str, JSON]


class ActivationKind(StrEnum):
    """Function of an FFN from `gate` and `up` to the values that scale the rows of `down`.

    With g = gate.x and u = up.x per neuron: SILU silu(g)*u, GELU gelu(g)*u, RELU relu(g)*u,
    DRELU relu(g)*relu(u), FATRELU (g if g >= threshold else 0)*u, RELU2 relu(g)^2*u,
    CLAMPED_SWIGLU c*sigmoid(1.702c) * (clamp(u, -7, 7) + 1) with c = min(g, 7), that of gpt-oss.
    An FFN without gate applies the same function to u alone (DRELU then equals RELU).
    """

    SILU = "silu"
    GELU = "gelu"
    RELU = "relu"
    DRELU = "drelu"
    FATRELU = "fatrelu"
    RELU2 = "relu2"
    CLAMPED_SWIGLU = "clamped_swiglu"


_DENSE = (ActivationKind.SILU, ActivationKind.GELU, ActivationKind.CLAMPED_SWIGLU)
_CUTTABLE = (ActivationKind.SILU, ActivationKind.GELU)


@dataclass(frozen=True, slots=True)
class Activation:
    """Activation of an FFN.

    Attributes:
        threshold: that of FatReLU. Of SILU and GELU: a function value (of gate; of up in an ungated
            FFN) of a smaller magnitude counts as zero; 0 leaves the function as it is.
    """

    kind: ActivationKind
    threshold: float = 0.0

    @property
    def is_cuttable(self) -> bool:
        """True if small values may be made zero."""
        return self.kind in _CUTTABLE

    @property
    def is_cut(self) -> bool:
        """True if small values count as zero."""
        return self.is_cuttable and self.threshold > 0.0

    @property
    def is_sparse(self) -> bool:
        """True if a neuron whose gate does not fire contributes exactly zero."""
        return self.kind not in _DENSE or self.is_cut

    def __str__(self) -> str:
        if self.kind is ActivationKind.FATRELU:
            return f"fatrelu:{self.threshold:g}"
        return self.kind.value


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens of one forward step, from one or several sequences.

    Attributes:
        token_ids: i32[num_tokens].
        positions: i32[num_tokens], absolute position of each token in its sequence.
        sequences: i32[num_tokens], row of `block_tables` each token belongs to.
        block_tables: i32[num_sequences, max_blocks], KV blocks of each sequence in order; block b
            holds positions [b * block_size, (b + 1) * block_size). Unused entries are -1.
        is_prompt: bool[num_tokens], True for given tokens, False for generated ones; None if all
            are generated. It selects the CPU's arithmetic: the logits of a token depend on the
            tokens of its own sequence and their `is_prompt`, and on nothing else in the step.
        state_sources: i32[num_sequences], slot of `StateLayer` that holds the state of each
            sequence before the step; -1 for a new sequence, whose state is all zeros. None for
            models without state.
        state_targets: i32[num_sequences], slot that gets the state after the step, never the one it
            is read from, so that an interrupted step can be repeated.
    """

    token_ids: IntArray
    positions: IntArray
    sequences: IntArray
    block_tables: IntArray
    is_prompt: BoolArray | None = None
    state_sources: IntArray | None = None
    state_targets: IntArray | None = None

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the step."""
        return len(self.token_ids)
