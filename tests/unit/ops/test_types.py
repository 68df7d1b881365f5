"""Types keep backends apart; mypy checks this, and this file says what it must find.

A `type: ignore` here marks an error that has to be one: mypy complains of an ignore without need.
"""

import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pytest

from native_cases import make_ffn, make_linear, numbers, tensor
from powerinfer import _core
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.cpu.handles import NativeFFN, NativeLinear, NativePredictor
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import FFN, Linear, MatrixUse, NeuronPredictor, Ops, ScoreStage
from powerinfer.ops.reference.ffn import ReferenceFFN
from powerinfer.ops.reference.matrix import ReferenceLinear
from powerinfer.ops.reference.ops import ReferenceKV, ReferenceMatrix, ReferenceOps, ReferenceState
from powerinfer.values import Activation, ActivationKind, FloatArray

if TYPE_CHECKING:
    from powerinfer.ops.hybrid.handles import HybridArray, HybridKV, HybridMatrix, HybridVector
    from powerinfer.ops.hybrid.ops import HybridOps

# What each backend works with: its arrays, matrices, vectors, caches, blocks and predictors.
ReferenceBackend: TypeAlias = Ops[
    FloatArray, ReferenceMatrix, FloatArray, ReferenceKV, ReferenceState
]
NativeBackend: TypeAlias = Ops[
    FloatArray,
    _core.Matrix,
    _core.Vector,
    _core.KVLayer,
    _core.StateLayer,
]
HybridBackend: TypeAlias = """Ops[
    HybridArray,
    HybridMatrix,
    HybridVector,
    HybridKV,
    object,
]"""

RELU = Activation(ActivationKind.RELU)
SIZES = (32, 48)


def reference_backend(ops: ReferenceOps) -> ReferenceBackend:
    return ops


def native_backend(ops: NativeOps) -> NativeBackend:
    return ops


def hybrid_backend(ops: "HybridOps") -> "HybridBackend":
    return ops


def another_backend(ops: NativeOps) -> ReferenceBackend:
    return ops  # type: ignore[return-value]


def test_a_model_forgets_what_its_backend_is() -> None:
    forget: Callable[[NativeOps], Backend] = as_backend
    ops = NativeOps(1)
    forgotten: object = forget(ops)
    assert forgotten is ops


def test_native_refuses_a_matrix_of_the_reference() -> None:
    ops, x = NativeOps(1), numbers((1, 32), 1)
    foreign: ReferenceLinear = make_linear(ReferenceOps(), "f32", (48, 32), 2)
    with pytest.raises(AttributeError):
        ops.linear(x, [foreign])  # type: ignore[list-item]
    with pytest.raises(AttributeError):
        ops.matrix_bytes(foreign.matrix)  # type: ignore[arg-type]


def test_the_reference_refuses_a_matrix_of_native() -> None:
    foreign: NativeLinear = make_linear(NativeOps(1), "f32", (48, 32), 2)
    with pytest.raises(AttributeError):
        ReferenceOps().linear(numbers((1, 32), 1), [foreign])  # type: ignore[list-item]


def test_native_refuses_a_block_of_the_reference_or_one_that_is_not_prepared() -> None:
    ops, x = NativeOps(1), numbers((1, 32), 1)
    foreign: ReferenceFFN = make_ffn(ReferenceOps(), RELU, SIZES)
    with pytest.raises(TypeError):
        ops.ffn(x, foreign)  # type: ignore[arg-type]
    part = Linear(ops.matrix(tensor("f32", (32, 32), 3), MatrixUse.NEURONS), ops.constant(x[0]))
    raw: NativeFFN = FFN(
        None, part, part, RELU, is_down_transposed=True, is_exact_sparse=True, native=None
    )
    with pytest.raises(TypeError):
        ops.ffn(x, raw)
    assert ops.ffn(x, ops.ffn_weights(raw)).shape == (1, 32)


def test_native_refuses_a_predictor_that_is_not_prepared() -> None:
    ops, x = NativeOps(1), numbers((1, 32), 1)
    block = make_ffn(ops, RELU, SIZES)
    matrix = ops.matrix(tensor("f32", (48, 32), 3), MatrixUse.DENSE)
    raw: NativePredictor = NeuronPredictor(None, None, (ScoreStage(matrix, None, 0.0),))
    with pytest.raises(TypeError):
        ops.ffn_weights(replace(block, predictor=raw))
    predictor = ops.neuron_predictor(raw)
    assert ops.ffn(x, ops.ffn_weights(replace(block, predictor=predictor))).shape == (1, 32)


def test_native_refuses_a_table_and_a_vector_of_the_reference() -> None:
    ops, x = NativeOps(1), numbers((1, 32), 1)
    table = ReferenceOps().matrix(tensor("f32", (48, 32), 2), MatrixUse.EMBEDDING)
    with pytest.raises(AttributeError):
        ops.embed(table, np.zeros(1, np.int32))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ops.rms_norm(x, numbers((32,), 3), 1e-5)  # type: ignore[arg-type]


def test_operands_are_values() -> None:
    """Frozen, without a dictionary, copied by `replace` and by pickle, type parameters or not."""
    block: ReferenceFFN = make_ffn(ReferenceOps(), RELU, SIZES)
    assert not hasattr(block, "__dict__")
    with pytest.raises((FrozenInstanceError, TypeError)):
        block.is_exact_sparse = True  # type: ignore[misc]
    sparse = replace(block, is_exact_sparse=True)
    assert sparse.is_exact_sparse
    assert sparse.up is block.up
    prepared = replace(block, native="ready")
    assert prepared.native == "ready"
    assert (prepared.gate, prepared.up, prepared.down) == (block.gate, block.up, block.down)
    copy = pickle.loads(pickle.dumps(block))
    np.testing.assert_array_equal(copy.up.matrix.values, block.up.matrix.values)
    assert (copy.activation, copy.native) == (block.activation, None)
