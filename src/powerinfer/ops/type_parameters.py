"""The type parameters of operands and backends: the types that a backend works with.

Type checkers require up to three parameters for each: one without suffix where values are accepted
and returned, `_co` where they are only returned, `_contra` where they are only accepted.
"""

from typing import TypeVar

__all__ = [
    "ArrayT",
    "KVLayerT",
    "MatrixT",
    "MatrixT_co",
    "MatrixT_contra",
    "PreparedFFNT",
    "PreparedFFNT_co",
    "PreparedFFNT_contra",
    "PreparedPredictorT",
    "PreparedPredictorT_co",
    "PreparedPredictorT_contra",
    "VectorT",
    "VectorT_co",
    "VectorT_contra",
]

# Activations, f32[num_tokens, columns].
ArrayT = TypeVar("ArrayT")

# Keys and values of one layer.
KVLayerT = TypeVar("KVLayerT")

# A weight matrix.
MatrixT = TypeVar("MatrixT")
MatrixT_co = TypeVar("MatrixT_co", covariant=True)
MatrixT_contra = TypeVar("MatrixT_contra", contravariant=True)

# A norm weight or bias.
VectorT = TypeVar("VectorT")
VectorT_co = TypeVar("VectorT_co", covariant=True)
VectorT_contra = TypeVar("VectorT_contra", contravariant=True)

# What a backend makes of a whole block, beside its matrices; None where it makes nothing.
PreparedFFNT = TypeVar("PreparedFFNT")
PreparedFFNT_co = TypeVar("PreparedFFNT_co", covariant=True)
PreparedFFNT_contra = TypeVar("PreparedFFNT_contra", contravariant=True)

# The same of a whole predictor.
PreparedPredictorT = TypeVar("PreparedPredictorT")
PreparedPredictorT_co = TypeVar("PreparedPredictorT_co", covariant=True)
PreparedPredictorT_contra = TypeVar("PreparedPredictorT_contra", contravariant=True)
