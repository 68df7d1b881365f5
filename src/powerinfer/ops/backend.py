"""Types of a model on an unknown backend.

A model only carries handles from one operation to the next, so its code names none of a backend's
types: `Backend` is a backend, `Matrix`, `Vector`, `KVLayer` and `StateLayer` are handles that this
backend made. They exist for the type checker only: at run time nothing wraps a handle.
"""

from typing import Any, NewType, Protocol, TypeAlias

from powerinfer.ops.protocol import (
    FFN,
    DeltaRule,
    HeadCopy,
    HeadNorms,
    Linear,
    NeuronPredictor,
    Ops,
    ScoreStage,
    SelectiveScan,
    ShortConv,
)

__all__ = [
    "Activations",
    "AnyBackend",
    "Backend",
    "KVLayer",
    "Matrix",
    "SomeDeltaRule",
    "SomeFFN",
    "SomeHeadCopy",
    "SomeHeadNorms",
    "SomeLinear",
    "SomePredictor",
    "SomeSelectiveScan",
    "SomeShortConv",
    "SomeStage",
    "StateLayer",
    "Vector",
    "as_backend",
]


class Activations(Protocol):
    """An array of activations, f32[num_tokens, columns], of numpy or of a device."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Tokens and columns."""
        ...

    def __len__(self) -> int:
        """Number of tokens."""
        ...


Matrix = NewType("Matrix", object)
Vector = NewType("Vector", object)
KVLayer = NewType("KVLayer", object)
# A cache keeps both in one list, an entry per layer, so the type checker cannot tell them apart.
StateLayer: TypeAlias = KVLayer

SomeDeltaRule: TypeAlias = DeltaRule[Vector]
SomeHeadCopy: TypeAlias = HeadCopy[Matrix]
SomeHeadNorms: TypeAlias = HeadNorms[Vector]
SomeLinear: TypeAlias = Linear[Matrix, Vector]
SomeSelectiveScan: TypeAlias = SelectiveScan[Vector]
SomeShortConv: TypeAlias = ShortConv[Vector]
SomeStage: TypeAlias = ScoreStage[Matrix, Vector]
SomePredictor: TypeAlias = NeuronPredictor[Matrix, Vector]
SomeFFN: TypeAlias = FFN[Matrix, Vector]
Backend: TypeAlias = Ops[Activations, Matrix, Vector, KVLayer, StateLayer]

AnyBackend: TypeAlias = Ops[Any, Any, Any, Any, Any]
"""Any backend: the type checker verifies that it is one and forgets the types of its handles."""


def as_backend(ops: AnyBackend) -> Backend:
    """Return the same backend, for code that does not depend on its types.

    From here on nothing checks that it gets its own handles. Those of a model are, because
    `models.load_model` makes them all with the backend that the model keeps.
    """
    return ops
