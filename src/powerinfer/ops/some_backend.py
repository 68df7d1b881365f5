"""The types of a model on an unknown backend.

A model only carries handles from one operation to the next, so its code names none of a backend's
types: `SomeOps` is a backend, and `Matrix`, `Vector`, ... are what that backend made. They are for
the type checker alone: at run time a handle is what the backend made and nothing wraps it.
"""

from typing import NewType, Protocol, TypeAlias, cast

from powerinfer.ops.protocol import FFN, HeadNorms, Linear, NeuronPredictor, Ops, ScoreStage
from powerinfer.ops.type_parameters import (
    ArrayT,
    KVLayerT,
    MatrixT,
    PreparedFFNT,
    PreparedPredictorT,
    VectorT,
)

__all__ = [
    "Activations",
    "KVLayer",
    "Matrix",
    "PreparedFFN",
    "PreparedPredictor",
    "SomeFFN",
    "SomeHeadNorms",
    "SomeLinear",
    "SomeOps",
    "SomePredictor",
    "SomeStage",
    "Vector",
    "some_ops",
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
PreparedFFN = NewType("PreparedFFN", object)
PreparedPredictor = NewType("PreparedPredictor", object)

SomeHeadNorms: TypeAlias = HeadNorms[Vector]
SomeLinear: TypeAlias = Linear[Matrix, Vector]
SomeStage: TypeAlias = ScoreStage[Matrix, Vector]
SomePredictor: TypeAlias = NeuronPredictor[Matrix, Vector, PreparedPredictor]
SomeFFN: TypeAlias = FFN[Matrix, Vector, PreparedFFN, PreparedPredictor]
SomeOps: TypeAlias = Ops[Activations, Matrix, Vector, KVLayer, PreparedFFN, PreparedPredictor]


def some_ops(
    ops: Ops[ArrayT, MatrixT, VectorT, KVLayerT, PreparedFFNT, PreparedPredictorT],
) -> SomeOps:
    """The same backend, for code that need not know which it is.

    The type checker makes sure that `ops` is a backend, and forgets the types of its handles. From
    here on nothing checks that the handles it is given are its own; a model's are, because
    `models.load_model` makes them all with the backend that the model keeps.
    """
    return cast("SomeOps", ops)
