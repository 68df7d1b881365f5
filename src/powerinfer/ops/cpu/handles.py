"""Handles and operands of the native CPU backend, under names that say whose they are."""

from typing import TypeAlias

from powerinfer import _core
from powerinfer.ops.operands import FFN, Linear, NeuronPredictor

__all__ = [
    "NativeFFN",
    "NativeKV",
    "NativeLinear",
    "NativeMatrix",
    "NativePredictor",
    "NativeVector",
    "PreparedNativeFFN",
    "PreparedNativePredictor",
]

# Objects of the C++ extension.
NativeMatrix: TypeAlias = _core.Matrix
NativeVector: TypeAlias = _core.Vector
NativeKV: TypeAlias = _core.KVLayer
PreparedNativeFFN: TypeAlias = _core.FFN
PreparedNativePredictor: TypeAlias = _core.NeuronPredictor

# Operands that hold them.
NativeLinear: TypeAlias = Linear[NativeMatrix, NativeVector]
NativePredictor: TypeAlias = NeuronPredictor[NativeMatrix, NativeVector, PreparedNativePredictor]
NativeFFN: TypeAlias = FFN[NativeMatrix, NativeVector, PreparedNativeFFN, PreparedNativePredictor]
