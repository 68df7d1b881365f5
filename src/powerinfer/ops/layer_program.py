"""What one step of a model runs, in parts, so that a backend may choose where and how each runs."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic

from powerinfer.ops.type_parameters import ArrayT
from powerinfer.values import Batch

__all__ = ["LayerProgram"]


@dataclass(frozen=True, slots=True)
class LayerProgram(Generic[ArrayT]):
    """The layers of a step and its end; all of it calls operations of one backend only.

    Attributes:
        num_layers: of the model.
        layers: ``layers(x, batch, first, last)`` runs layers [first, last) on
            x f32[num_tokens, hidden_size], which they may add to in place, and returns what it has
            become. A stream without rows is wanted by nobody: no later layer need run.
        end: ``end(x)`` is what the step returns: f32[num_selected, vocab_size], or
            f32[num_selected, hidden_size] if states are wanted.
        key: what the calls depend on besides x, the numbers in the batch and the weights. A backend
            may record them under this key and the sizes in the batch, and replay the record. None:
            they must be made in every step.
    """

    num_layers: int
    layers: Callable[[ArrayT, Batch, int, int], ArrayT]
    end: Callable[[ArrayT], ArrayT]
    key: Hashable | None = None
